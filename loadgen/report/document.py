"""A result as a document: a heading with the answers, then sections of tables and notes.

Terminal, Markdown and HTML render these, so all say the same in the same words; the HTML page adds figures and what
only a page has room for. A new section is one function here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from loadgen.format import Statistic, counted, exact, exact_percent, fixed, grouped, signed_percent
from loadgen.grouping import by_key
from loadgen.record.figures import FIGURES
from loadgen.record.quote import quote_of
from loadgen.record.slo import sure_words
from loadgen.record.subject import engine_of, hardware_of, known_time, model_of
from loadgen.report.assessment import assessment, best_stage, first_line, interrupted_search, titles
from loadgen.report.columns import (
    CURVE,
    EFFICIENCY,
    HITS,
    LIMITS_MET,
    SESSIONS,
    SHAPE,
    THROUGHPUT,
    NamedSummary,
    columns,
    host_columns,
    instance_columns,
    known,
    load_column,
    moving_points,
    outcome_columns,
    published_columns,
    statistic_columns,
)
from loadgen.report.notes import (
    Note,
    condition_words,
    foreign_notes,
    has_numbers,
    latency_titles,
    mfu_unknown,
    published_nowhere,
    stage_notes,
    took_part,
)
from loadgen.report.output import checked_columns, is_of_output, run_words
from loadgen.report.served import LATENCY, MORE, NO_LOAD_NOTE, SERVED, latencies_of, watched, watched_notes
from loadgen.report.tabular import Bad, Column, Value, figure, judged
from loadgen.schema.comparison import Compared
from loadgen.schema.deltas import Summary
from loadgen.schema.engine import EngineStage
from loadgen.schema.result import Result, SloCheck, StageResult, TierResult
from loadgen.schema.shared import SearchPoint

_ABOVE = ("Successful requests", "Failed requests")  # already in the table of throughput
_MIN_HITS = 0.01  # of the prompt tokens: random prompts share a few
_IN_TABLES = ("MFU", "Output")  # notes that a table says
_WITH_A_BASELINE = ("output_tok_s", "req_s", "ttft", "tpot", "goodput", "j_per_token")
"""The figures shown with those of a baseline; `vramp compare` shows all."""


class Table(NamedTuple):
    columns: Sequence[Column[Any]]
    rows: Sequence[Any]
    title: str = ""


class Section(NamedTuple):
    """One subject: tables, notes below them, and what the figures are of."""

    title: str
    tables: Sequence[Table] = ()
    notes: Sequence[Note] = ()
    about: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.notes and not any(table.rows for table in self.tables)


def heading(result: Result) -> Section:
    """What was measured, with the first questions of a reader and their answers as notes."""
    state = "live" if result.is_live else result.state.replace("_", " ")
    ended = "" if result.state == "complete" else f", {state}: {first_line(result.reason)}"
    started = f", started {began}" if (began := known_time(result.started_at)) is not None else ""
    words = f"{engine_of(result)}, run {result.run_id}{started}{ended}"
    data = f", sent {result.data.words}" if result.data is not None else ""
    facts = f"{words}, measured with {result.measured_by or f'vramp {result.vramp_version}'}{data}"
    return Section(f"{model_of(result)} on {hardware_of(result)}", notes=assessment(result), about=facts)


def sections(result: Result, statistics: str = "count mean p50 p90 p99 max") -> list[Section]:
    """Everything that every format shows, without empty sections; `statistics` are those of the latencies."""
    stages = [stage for stage in result.stages if took_part(stage)]
    found = [
        throughput(stages),
        efficiency(stages),
        latency(stages, statistics),
        limits(stages),
        sessions(result, stages),
        requests(stages),
        client_and_engine(result),
        parts(result),
        without_load(result),
        by_load_held(result),
        serving_curve(stages),
        verdicts(result),
        notes(stages),
        search(result),
        tiers(result),
        published(result),
        baseline(stages),
        output(result),
        server_start(result),
        client(result),
        fit_to_quote(result),
    ]
    return [section for section in found if not section.is_empty]


def throughput(stages: Sequence[StageResult]) -> Section:
    return Section("Throughput", [Table([load_column(stages), *THROUGHPUT, *known(LIMITS_MET, stages)], stages)])


def efficiency(stages: Sequence[StageResult]) -> Section:
    shown = known(EFFICIENCY, stages)
    unknown = [f"unknown: {why}" for why in map(mfu_unknown, stages) if why]
    peaks = [
        f"of {grouped(one.peak_tflops, 0)} TFLOP/s in {one.precision}, dense, by the engine's own estimate"
        for one in (stage.compute for stage in stages)
        if one is not None and one.mfu_percent is not None
    ]
    energies = [one.energy for one in stages if one.energy is not None and one.energy.joules is not None]
    sources = [
        f"of {len(one.sockets)} sockets, by {one.source}{', as their counters deviate from it' * one.distrusted}"
        for one in energies
    ]
    return Section(
        "Tokens by user, GPU, power and money",
        [Table([load_column(stages), *shown], stages if shown else [])],
        [*_notes("MFU", [*unknown, *peaks]), *_notes("Energy", sources)],
    )


def _notes(subject: str, texts: Iterable[str]) -> list[Note]:
    """Each text once."""
    return [Note(subject, text) for text in dict.fromkeys(texts)]


def latency(stages: Sequence[StageResult], statistics: str) -> Section:
    """A row for each latency under each load; none for moving loads, whose latencies belong to no single load."""
    measured = [stage for stage in stages if has_numbers(stage) and not stage.curve]
    names = titles(stages)
    rows = [
        NamedSummary(title, stage.latency_ms.get(name, Summary(count=0)), names[stage.index], stage.duration_s > 0)
        for name, title in latency_titles(measured).items()
        for stage in measured
        if name != "e2e" or stage.e2e_inconclusive is None
    ]
    named: list[Column[NamedSummary]] = [
        Column("ms", attrgetter("title"), words=True),
        Column("load", attrgetter("load"), words=True),
    ]
    return Section("Latency", [Table([*named, *statistic_columns(statistics)], rows)])


def limits(stages: Sequence[StageResult]) -> Section:
    """The measured value for each limit, unless all are surely met, as the table of throughput says."""
    found = {name: check.limit_ms for stage in stages for name, check in stage.slo.items()}
    failures = [one for stage in stages if (one := stage.failures) is not None and (one.allowed or not one.met)]
    goodput = next((stage.goodput for stage in stages if stage.goodput is not None), None)
    shown: list[Column[StageResult]] = [
        Column(f"{name} <= {exact(limit_ms)} ms", lambda stage, name=name: _checked(stage.slo.get(name)), words=True)  # type: ignore[misc]
        for name, limit_ms in found.items()
    ]
    if goodput is not None:
        each = ", ".join(f"{name} <= {exact(limit_ms)} ms" for name, limit_ms in goodput.limits_ms.items())
        shown.append(Column(f"{exact_percent(goodput.wanted)} of streams: {each}", _good_share, words=True))
    if failures:
        shown.append(Column(f"failed or unsent <= {100 * failures[0].allowed:g} %", _failures, words=True))
    is_clear = not any(_is_doubtful(stage) for stage in stages)
    return Section("Limits", [] if is_clear else [Table([load_column(stages), *shown], stages)])


def _is_doubtful(stage: StageResult) -> bool:
    checks = stage.slo.values()
    others = [one.met for one in (stage.failures, stage.goodput) if one is not None]
    return not all(others) or any(not check.met or sure_words(check) for check in checks)


def _checked(check: SloCheck | None) -> Value:
    if check is None:
        return None
    if check.is_empty:
        return "not measured"
    streams = f"; {check.missed} of {check.population} beyond it" if not check.met and check.missed else ""
    sure = sure_words(check)
    return judged(f"{exact(check.measured_ms)}{streams}{'; ' if sure else ''}{sure}", good=check.met)


def _failures(stage: StageResult) -> Value:
    failures = stage.failures
    if failures is None:
        return None
    return judged(f"{failures.count:,} of {failures.scheduled:,}", good=failures.met)


def _good_share(stage: StageResult) -> Value:
    goodput = stage.goodput
    if goodput is None:
        return None
    return judged(exact_percent(goodput.share), good=goodput.met)


def requests(stages: Sequence[StageResult]) -> Section:
    """Requests that did not succeed, a column per outcome that occurred, and the first message of each kind."""
    outcomes = [replace(one, label=one.label.lower()) for one in outcome_columns(stages) if one.label not in _ABOVE]

    counts: Counter[str] = Counter()
    messages: dict[str, str] = {}
    for stage in stages:
        counts.update(stage.requests.errors)
        for kind, texts in stage.requests.messages.items():
            messages.setdefault(kind, texts[0] if texts else "")

    return Section(
        "Requests",
        [
            Table([load_column(stages), *outcomes], stages if outcomes else []),
            Table(_ERRORS, [(kind, count, messages.get(kind, "")) for kind, count in counts.most_common()]),
        ],
    )


_ERRORS: tuple[Column[tuple[str, int, str]], ...] = (
    Column("failed with", itemgetter(0), words=True),
    Column("count", itemgetter(1)),
    Column("first message", itemgetter(2), words=True),
)


def client_and_engine(result: Result) -> Section:
    """The engine's own figures with the client's; stages that are compared together have one row."""
    names = titles(result.stages)
    compared = {stage.index: stage.truth.over or names[stage.index] for stage in result.stages if stage.truth}
    rows = {compared[stage.index]: stage for stage in result.stages if stage.truth}
    whys = by_key((stage.truth.why if stage.truth else "", compared[stage.index]) for stage in rows.values())
    of = Column[StageResult]("load", lambda stage: compared[stage.index], words=True)
    return Section(
        "Client and engine",
        [
            Table([of, *_CHECKED], [*rows.values()]),
            Table([load_column(result.stages), *_CACHE], [stage for stage in result.stages if any(_cache(stage))]),
        ],
        [Note(", ".join(of_whom), why) for why, of_whom in whys.items() if why],
        about="Mean times to first token, as both saw the same requests, and where the engine's own were spent.",
    )


def _cache(stage: StageResult) -> tuple[int | None, str | None]:
    """Preemptions, and the share of prompt tokens in the prefix cache if it is worth mentioning."""
    engine = stage.engine or EngineStage()
    hits = engine.prefix_hit_rate or 0.0
    return engine.preemptions or None, f"{hits:.1%}" if hits >= _MIN_HITS else None


_CACHE: tuple[Column[StageResult], ...] = (
    Column("preemptions", lambda stage: _cache(stage)[0]),
    Column("prefix hits", lambda stage: _cache(stage)[1]),
)
_AGREES = {True: "yes", False: Bad("no"), None: "not compared"}
_TTFT, _ENGINE = "TTFT, ms", "in the engine, ms"
_CHECKED: tuple[Column[StageResult], ...] = (
    Column("client", figure("truth", "ttft_client_ms"), group=_TTFT, decimals=1),
    Column("engine", figure("truth", "ttft_server_ms"), group=_TTFT, decimals=1),
    Column("between", figure("truth", "ttft_outside_ms"), group=_TTFT, decimals=1),
    Column("queue", figure("truth", "queue_ms"), group=_ENGINE, decimals=1),
    Column("prefill", figure("truth", "prefill_ms"), group=_ENGINE, decimals=1),
    Column("front end", figure("truth", "frontend_ms"), group=_ENGINE, decimals=1),
    Column("agree", lambda stage: _AGREES[getattr(stage.truth, "agrees", None)], words=True),
)


def parts(result: Result) -> Section:
    """Each server's and each host's part of the best stage, if there are several."""
    stage = best_stage(result)
    if stage is None:
        return Section("Servers and hosts")
    return Section(
        "Servers and hosts",
        [Table(instance_columns(decimals=2), stage.instances), Table(host_columns(decimals=2), stage.hosts)],
        about=f"At {titles(result.stages)[stage.index]}.",
    )


def serving_curve(stages: Sequence[StageResult]) -> Section:
    """Latency by token against the answered requests a minute, if several rates were offered: flat until it bends."""
    offered = [stage for stage in stages if stage.target.rate is not None and stage.requests.completed]
    is_ladder = len({stage.target.rate for stage in offered}) > 1
    rows = sorted(offered, key=lambda stage: stage.target.rate or 0.0) if is_ladder else []
    about = "Normalized latency is E2E divided by input and output tokens."
    return Section("Serving curve", [Table(_SERVING, rows)], about=about)


def per_minute(per_s: float | None) -> float | None:
    return None if per_s is None else per_s * 60


_SERVING: tuple[Column[StageResult], ...] = (
    Column("requested/min", lambda stage: per_minute(stage.target.rate), decimals=1),
    Column("achieved/min", lambda stage: per_minute(stage.throughput.requests_per_s), decimals=1),
    Column("ms/token mean", lambda stage: Statistic.of(stage.latency_ms.get("normalized"), "mean"), decimals=3),
    Column("ms/token p99", lambda stage: Statistic.of(stage.latency_ms.get("normalized"), "p99"), decimals=3),
)


def without_load(result: Result) -> Section:
    """Stages in which nothing was sent: the engine's figures for what others sent, and what the GPUs drew."""
    stages, names = watched(result.stages), titles(result.stages)
    has_server = result.environment.get("engine") != "none"
    energy = known(EFFICIENCY, stages)
    shown: list[Column[Any]] = [load_column(stages), *columns("measured_s")]
    shown += [*([*SERVED, *MORE] if has_server else []), *energy]
    tables = [Table(shown, stages)]
    tables += [Table(LATENCY, latencies_of(stage.engine), names[stage.index]) for stage in stages]
    reported = [Note(names[index], "; ".join(map(str, found))) for index, found in watched_notes(result.stages).items()]
    about = NO_LOAD_NOTE if has_server else "No load was sent in these stages."
    return Section("Without load", tables, [note for note in reported if note.text], about if stages else "")


def by_load_held(result: Result) -> Section:
    in_sessions = any(stage.sessions is not None for stage in result.stages)
    title, words = "By the streams held", "streams were held"
    if in_sessions:
        title, words = "By live sessions", "sessions were live"
    points = moving_points(result)
    hits = known(columns("hits_measured hits_pool hits_infinite"), points)
    about = (
        f"All that was measured while so many {words}, however the load came there; up and down are apart. "
        "Times are of the gaps and first tokens of those moments: E2E belongs to no load."
    )
    tables = [
        Table([*SHAPE, *CURVE], points),
        Table([CURVE[0], *hits], points if hits else [], "Prefix cache hits, of the prompt tokens"),
    ]
    return Section(title, tables, about=about)


def verdicts(result: Result) -> Section:
    """What limited each stage, and what is wrong with the GPUs; the output has its own section."""
    stages = [stage for stage in result.stages if _verdict_words(stage)]
    names = titles(result.stages)
    rows = [(names[stage.index], _verdict_words(stage)) for stage in stages]
    rows += [(one.subject, judged(one.text, good=not one.bad)) for one in result.verdicts if not is_of_output(one)]
    return Section("Verdicts", [Table(_VERDICTS, rows)])


_VERDICTS: tuple[Column[tuple[str, str]], ...] = (
    Column("where", itemgetter(0), words=True),
    Column("verdict", itemgetter(1), words=True),
)


def _verdict_words(stage: StageResult) -> str:
    found = [verdict for verdict in stage.verdicts if not is_of_output(verdict)]
    return judged("; ".join(verdict.text for verdict in found), good=not any(verdict.bad for verdict in found))


def notes(stages: Sequence[StageResult]) -> Section:
    """What the figures of each stage do and do not cover."""
    names = titles(stages)
    reported = []
    for stage in stages:
        found = [str(note) for note in stage_notes(stage) if note.subject not in _IN_TABLES]
        reported += [Note(names[stage.index], "; ".join(found))] if found else []
    return Section("What the figures cover", notes=reported)


def search(result: Result) -> Section:
    found = result.search
    if found is None:
        words = interrupted_search(result).strip()
        return Section("Search", notes=[Note("", words)] if words else [])
    resolved = "" if found.resolved else "UNRESOLVED: "
    result_of_it = Note(found.kind, f"{resolved}{found.words}, {counted(found.probes, 'probe')}; {found.why}")
    points = [point for point in found.points if found.kind == "knee" and point.held is not None]
    return Section("Search", [Table(_KNEE_CURVE, sorted(points, key=attrgetter("load")))], [result_of_it])


def sessions(result: Result, stages: Sequence[StageResult]) -> Section:
    """What became of the sessions, and how much of their prompts was cached."""
    played = [stage for stage in stages if stage.sessions is not None]
    hits = [stage for stage in played if stage.hits is not None]
    measured = [stage for stage in hits if stage.hits is not None and stage.hits.measured is not None]
    workers, servers = result.client.workers, len(result.environment.get("server_instances") or [None])
    found = []
    if hits and not measured:
        words = "unknown: the server's usage does not say what it had cached (vLLM: --enable-prompt-tokens-details)"
        found.append(Note("Hits", words))
    if (result.profile.get("load", {}).get("sessions") or {}).get("history") == "server":
        words = 'unknown: with load.sessions.history = "server", what prompts have in common depends on the answers'
        found.append(Note("Both caches", words))
    elif hits and workers > servers:
        words = f"estimates: each of the {workers} workers knows only its own sessions and its share of the KV cache"
        found.append(Note("Both caches", words))
    return Section(
        "Sessions",
        [Table([load_column(stages), *SESSIONS], played), Table([load_column(stages), *known(HITS, hits)], hits)],
        found,
        "A session belongs to no stage: it may begin in one and end in another. Hits are shares of prompt tokens, next "
        "to what a cache without limit, and one of the KV cache's size, would hold of what was sent. In both, requests "
        "in flight take no room.",
    )


def tiers(result: Result) -> Section:
    """For each tier the highest load that meets it."""
    about = (
        "In brackets the highest load that meets it and the lowest that misses it, each with 95 % confidence; unknown "
        "where the figures as measured are not enough for that."
    )
    return Section("Tiers", [Table(_TIERS, result.tiers)], about=about if result.tiers else "")


_TIERS: tuple[Column[TierResult], ...] = (
    Column("tier", attrgetter("tier"), words=True),
    Column("load", attrgetter("by"), words=True),
    Column("highest that meets it", attrgetter("words"), words=True),
)
_KNEE_CURVE: tuple[Column[SearchPoint], ...] = (
    Column("streams held", attrgetter("held")),
    Column("output tok/s", attrgetter("output_tokens_per_s")),
    Column("error %", attrgetter("error_percent")),
)


def published(result: Result) -> Section:
    """Published figures with the measured ones, and what of the publication's conditions is the same."""
    reference = result.reference
    if reference is None:
        return Section("Published and measured")
    ratios = "ratios of its variants were published: `vramp sweep` measures them" if reference.ratios else ""
    words = filter(None, [*condition_words(reference.conditions), *reference.notes, published_nowhere(result), ratios])
    return Section(
        "Published and measured",
        [Table(published_columns(result.stages), reference.comparisons)],
        [Note("", text) for text in words],
        about=reference.source,
    )


def baseline(stages: Sequence[StageResult]) -> Section:
    """Each stage with the stage of the same load in the baseline."""
    names = titles(stages)
    compared = [(names[stage.index], stage.baseline) for stage in stages if stage.baseline is not None]
    rows = [(name, one) for name, view in compared for one in view.figures if one.figure.startswith(_WITH_A_BASELINE)]
    reported = [Note(name, view.verdict) for name, view in compared]
    return Section(f"Against baseline {compared[0][1].name}" if compared else "", [Table(_BASELINE, rows)], reported)


def _difference_word(row: tuple[str, Compared]) -> Value:
    found = row[1].difference
    return "" if found is None or found.word == "no evidence" else found.word


_BASELINE: tuple[Column[tuple[str, Compared]], ...] = (
    Column("load", itemgetter(0), words=True),
    Column("figure", lambda row: FIGURES[row[1].figure].title, words=True),
    Column("baseline", lambda row: row[1].a),
    Column("measured", lambda row: row[1].b),
    Column("difference", lambda row: signed_percent(getattr(row[1].difference, "percent", None))),
    Column("", _difference_word, words=True),
)


def output(result: Result) -> Section:
    """Whether the output is right: a row for each stage in which it was checked."""
    stages = [stage for stage in result.stages if stage.canary is not None or stage.answers is not None]
    if not stages and result.canary is None:
        return Section("Output")
    of_run = [Note(one.subject, one.text) for one in result.verdicts if is_of_output(one)]
    words = run_words(result.canary) if result.canary is not None else ()
    return Section(
        "Output",
        [Table([load_column(stages), *checked_columns(stages)], stages)],
        [*of_run, *(Note("", text) for text in words)],
    )


def server_start(result: Result) -> Section:
    """What the server said of its start, and what differs from the last one with the same flags."""
    if result.server is None:
        return Section("Server start")
    changed = [Note("", f"unlike the last start: {one.words}") for one in result.server.differences]
    return Section("Server start", notes=[*(Note("", words) for words in result.server.start.words), *changed])


def client(result: Result) -> Section:
    """Whether the client kept up; for another tool's result, how it measured."""
    foreign = foreign_notes(result)
    if foreign:
        return Section("How it was measured", notes=foreign)
    return Section("Client", notes=[Note("", words) for words in _client_words(result)])


def _client_words(result: Result) -> Iterator[str]:
    if result.kind == "monitor":
        yield "sent nothing"
        return
    state, placed = result.client, result.client.placement
    trust = f"LIMITED: {state.why}" if state.limited else "not limited"
    lag = fixed(state.read_lag_ms.p99)
    realtime = "" if state.realtime is None else f", real-time priority {state.realtime:.0%} of the time"
    where = f" on {placed.words}" if placed is not None and placed.pinned else ""
    workers = f"{counted(state.workers, 'worker')}{where}, {state.cpu_s:.1f} s of CPU{realtime}"
    yield f"{trust}; {state.timestamps or 'no'} timestamps, read lag p99 {lag} ms; {workers}"
    late, several = state.send_lag_ms, state.coalesced_reads
    if late.count:
        reads = "" if several is None else f"; {several:.2%} of the reads carried several events"
        yield f"sent late by {fixed(late.mean)} ms on average, p99 {fixed(late.p99)} ms{reads}"


def fit_to_quote(result: Result) -> Section:
    """Whether the figures can be quoted, and if not, why."""
    quote = quote_of(result)
    if quote is None:
        return Section("Fit to quote")
    counts = [f"{counted(len(quote.kept), 'rule')} kept"]
    counts += [f"{len(quote.problems)} broken"] if quote.problems else []
    counts += [f"{len(quote.not_checked)} not checked"] if quote.not_checked else []
    reasons = by_key((why, rule) for rule, why in quote.not_checked.items())
    unknown = "; ".join(f"{', '.join(rules)}: {why}" for why, rules in reasons.items())
    return Section(
        "Fit to quote",
        notes=[
            Note("Yes, as far as it was checked" if quote.fit else "No", ", ".join(counts)),
            *(Note(one.rule, f"{one.evidence}. Remedy: {one.remedy}") for one in quote.problems),
            *([Note("not checked", unknown)] if unknown else []),
        ],
    )
