"""What the picker shows of a profile: its row in the list, what it starts and sends, and the preflight's findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from loadgen import format as fmt
from loadgen.errors import ProfileError
from loadgen.plan.from_profile import stages_of
from loadgen.plan.stage import Stage
from loadgen.profile.schema import Profile, Server
from loadgen.report.examination import findings_count
from loadgen.schema.finding import Finding
from tui.catalog import Entry, Origin, PastRun
from tui.panels.past import ago, best_words, state_word
from tui.panels.startup import finding_rows
from tui.widgets.rows import Row, Rows, Word, padded, spread, titled, wrapped

_LABEL_CELLS = 11
_LOADS_SHOWN = 8
_NAME_CELLS, _MODEL_CELLS, _ENGINE_CELLS, _LAST_CELLS = 28, 30, 11, 24
_MODEL_FROM, _ENGINE_FROM = 58, 84  # from these widths on the list has these columns too
ORIGINS: dict[Origin, str] = {
    "yours": "yours",
    "site": "this machine's, in /etc/vramp/profiles.d",
    "shipped": "shipped with vramp",
}


def entry_head(width: int) -> Row:
    name, model, engine = _columns(width)
    heads = f"{'profile':<{name}}{'model':<{model}.{model}}{'engine':<{engine}.{engine}}last run"
    return ((heads, "dim"),)


def entry_row(entry: Entry, last: PastRun | None, now: datetime, width: int) -> Row:
    name, model, engine = _columns(width)
    row: list[Word] = [(padded(fmt.plain(entry.name), name - 1) + " ", "text")]
    if entry.profile is None:
        return (*row, ("! not a profile", "bad"))
    server = entry.profile.server
    if model:
        row.append((padded(model_words(server).rpartition("/")[2], model - 1) + " ", "dim"))
    row.append((f"{server.engine:<{engine}.{engine}}", "dim"))
    if last is not None:
        went_well = last.load and last.state in ("complete", "stopped")
        best: Word = (f"{fmt.number(last.output_tokens_per_s)} tok/s", "throughput")
        row += [best if went_well else state_word(last), (f"  {ago(last.started, now)}", "dim")]
    return tuple(row)


def _columns(width: int) -> tuple[int, int, int]:
    """Return the widths of name, model and engine; 0 for a column that does not fit."""
    engine = _ENGINE_CELLS if width >= _ENGINE_FROM else 0
    room = width - engine - _LAST_CELLS
    name = max(12, min(_NAME_CELLS, room))
    return name, max(0, min(_MODEL_CELLS, room - name)) if width >= _MODEL_FROM else 0, engine


def model_words(server: Server) -> str:
    """Return the served model, as far as the profile names it."""
    named = server.model or server.served_model_name
    return fmt.plain(named) if named is not None else "what is served"


def detail(entry: Entry, variant: str | None, last: PastRun | None, now: datetime, width: int) -> Rows:
    """Return everything about the profile under the cursor except the preflight."""
    rows = [
        titled(fmt.plain(entry.name), ((ORIGINS[entry.origin], "dim"),), width),
        ((f" {fmt.plain(str(entry.path))}", "dim"),),
    ]
    if entry.profile is None:
        return [*rows, (), *wrapped(entry.problem, width - 1, "bad")]
    rows += wrapped(entry.profile.description, width - 1, "text")
    rows.append(())
    rows += _facts(entry, entry.profile, variant)
    if last is not None:
        best, when = f"   {best_words(last)}".rstrip(), f"   {ago(last.started, now)}"
        rows.append(_labelled("last run", state_word(last), (best, "throughput"), (when, "dim")))
    return rows


def _facts(entry: Entry, profile: Profile, variant: str | None) -> Rows:
    server = profile.server
    where = f"   {server.platform}" if server.platform is not None else ""
    rows = [_labelled("server", (server.engine, "text"), (f"   {model_words(server)}{where}", "text"))]
    if server.attached:
        rows.append(_labelled("at", (", ".join(fmt.plain(url) for url in server.attached), "text")))
    rows += [_labelled("load" if not number else "", (line, "text")) for number, line in enumerate(load_words(profile))]
    if profile.load.data is not None:
        named = profile.reference.data if profile.reference is not None else ""
        words = f"   published with {fmt.plain(named)}" if named else ""
        rows.append(_labelled("data", (fmt.plain(profile.load.data), "text"), (words, "dim")))
    if profile.load.sessions is not None:
        rows.append(_labelled("sessions", (fmt.plain(profile.load.sessions.data), "text")))
    if profile.slo.has_limits:
        limits = [f"{name} {fmt.exact(limit)} ms" for name, limit in profile.slo.limits_ms.items()]
        limits += [f"failed {profile.slo.failed:.2%}"] if profile.slo.failed else []
        rows.append(_labelled("limits", (", ".join(limits), "text")))
    if entry.variants:
        count = len(entry.variants)
        others = f"or {count} other{'s' if count > 1 else ''}" if variant is None else f"one of {count}"
        rows.append(_labelled("variant", (fmt.plain(variant or "as it is"), "strong"), (f"   {others}", "dim")))
    if profile.reference is not None:
        points = len(profile.reference.points)
        words = f"   {fmt.counted(points, 'point')}" if points else ""
        rows.append(_labelled("published", (fmt.plain(profile.reference.source), "text"), (words, "dim")))
    return rows


def load_words(profile: Profile) -> list[str]:
    """Return the plan in two lines: the loads, and the shape and length of the stages."""
    try:
        stages = stages_of(profile)
    except ProfileError as error:
        return [str(error)]
    plan = profile.plan
    if plan.search is not None:
        loads = f"search for the {plan.search}: {plan.by} {plan.least:g} to {plan.most:g}"
    else:
        closed = dict.fromkeys(fmt.setting(stage.concurrency) for stage in stages if stage.rate is None)
        open_loop = dict.fromkeys(fmt.setting(stage.rate) for stage in stages if stage.rate is not None)
        in_sessions = any(stage.work.sessions is not None for stage in stages)
        kinds = [f"{_some(closed)} sessions" if in_sessions else f"conc {_some(closed)}"] if closed else []
        kinds += [f"rate {_some(open_loop)}/s"] if open_loop else []
        loads = f"{fmt.counted(len(stages), 'stage')}: {'; '.join(kinds)}"
    shapes = dict.fromkeys(f"{stage.isl}/{stage.osl}" for stage in stages)
    lengths = dict.fromkeys(_length(stage) for stage in stages)
    return [loads, f"ISL/OSL {_some(shapes)}   {_some(lengths)}"]


def _length(stage: Stage) -> str:
    if stage.requests is not None:
        return fmt.counted(stage.requests, "request")
    return fmt.duration(stage.duration_s) if stage.duration_s is not None else "open-ended"


def _some(found: Iterable[str]) -> str:
    texts = list(found)
    if len(texts) <= _LOADS_SHOWN:
        return ", ".join(texts)
    return ", ".join([*texts[: _LOADS_SHOWN - 1], "…", texts[-1]])


def preflight(findings: Sequence[Finding] | None, waited_s: float, width: int, problem: str = "") -> Rows:
    """Return the preflight's findings; while they are None, how long the check has taken so far."""
    title = titled("preflight", (), width)
    if problem:
        return [title, *wrapped(problem, width - 1, "bad")]
    if findings is None:
        waited = f" {waited_s:.0f} s" if waited_s >= 1 else ""
        return [title, ((f" checking this box …{waited}", "dim"),)]
    count: Row = ((" nothing blocks", "good"), (f", {findings_count(findings)}" if findings else "", "text"))
    if any(finding.severity == "blocks" for finding in findings):
        count = ((f" ! {findings_count(findings)}", "bad"),)
    return [title, count, (), *(row for finding in findings for row in finding_rows(finding, width))]


def _labelled(label: str, *words: Word) -> Row:
    return ((f" {label:<{_LABEL_CELLS}}", "dim"), *words)


def header(folder: str, width: int) -> Row:
    """Return the title with the current folder, below which runs and own profiles are."""
    return spread(((" vramp", "title"), ("  which profile?", "text")), ((f"{fmt.plain(folder)} ", "dim"),), width)


def searched(entry: Entry) -> str:
    model = model_words(entry.profile.server) if entry.profile is not None else ""
    return f"{entry.name} {model}"


def variant_words(entry: Entry, variant: str) -> str:
    """Return a variant's name and description, for the list of choices."""
    overlay = entry.document["variants"][variant]
    description = overlay.get("description", "") if isinstance(overlay, dict) else ""
    return f"{variant:<24} {description}".rstrip()
