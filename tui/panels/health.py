"""Server, client and hosts, the engine's gauges, and the verdicts: what is the limit?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from loadgen import format as fmt
from loadgen.metrics.verdicts import HOST_FULL_PERCENT
from loadgen.report.columns import host_columns
from loadgen.report.notes import mfu_words
from loadgen.schema.engine import EngineView
from loadgen.schema.finding import Verdict
from loadgen.schema.samples import HostSample
from tui.panels import served
from tui.panels.frame import Frame
from tui.panels.stages import cell_words, head_words
from tui.widgets import rows as r
from tui.widgets.rows import GAP, Row, Rows, Word, facts, titled, wrapped

ENGINE: Mapping[str, Callable[[EngineView], str]] = {
    "running": lambda one: fmt.count(one.running),
    "waiting": lambda one: fmt.count(one.waiting),
    "KV": lambda one: fmt.percent(one.kv_usage),
    "prompt/s": lambda one: fmt.number(one.prompt_tokens_per_s),
    "gen/s": lambda one: fmt.number(one.generation_tokens_per_s),
    "prefix": lambda one: fmt.percent(one.prefix_hit_rate),
    "preempt": lambda one: fmt.count(one.preemptions),
}
"""The figures of an engine, by their heads."""
_CELL, _NAME, _HOST, _INDENT = 9, 14, 16, 3
_STATE_ROLES = {"ready": "good", "died": "bad"}  # the others are to be watched


def server(frame: Frame, width: int, height: int) -> Rows:
    """Return the engine's own gauges; unknown if it publishes no metrics, or does not run."""
    engine, state = _engine_now(frame), frame.snapshot.server.state
    kv, preempted = _kv(engine), engine.preemptions
    return [
        titled("server", ((state, "bad" if state == "died" else "dim"),), width),
        facts("  ", *_queue(engine)),
        ((" KV ", "dim"), *r.bar(engine.kv_usage, max(0, width - 11), kv[1]), (" ", "text"), kv),
        facts("", ("preempted", f"{fmt.count(preempted):>5}", "warn" if preempted else "text")),
    ]


def server_strip(frame: Frame) -> Row:
    engine, failed = _engine_now(frame), sum(frame.snapshot.errors.values())
    (label, running, role), waiting = _queue(engine)
    kv, errors = ("KV", *_kv(engine)), ("errors", fmt.count(failed), "bad" if failed else "text")
    return facts("   ", (f"server  {label}", running, role), waiting, kv, errors)


def _engine_now(frame: Frame) -> EngineView:
    """Without the last figures of a server that is down: they are of nothing that runs."""
    return (frame.snapshot.engine if _is_up(frame) else None) or EngineView()


def _is_up(frame: Frame) -> bool:
    return frame.snapshot.server.state == "ready"


def _queue(engine: EngineView) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
    running, waiting = f"{fmt.count(engine.running):>5}", f"{fmt.count(engine.waiting):>5}"
    return ("running", running, "running"), ("waiting", waiting, "waiting")


def _kv(engine: EngineView) -> Word:
    usage = engine.kv_usage
    return (f"{fmt.percent(usage):>5}", "warn" if usage is not None and usage >= 0.95 else "text")


def client(frame: Frame, width: int, height: int) -> Rows:
    """Return the client's health, with the reason if it is the limit; if it sends nothing, others' requests."""
    state, hosts = frame.snapshot.client, frame.snapshot.hosts
    if frame.no_load and not state.workers:
        return served.requests(frame, width, height)
    values = {
        "read lag p99, ms": fmt.number(state.read_lag_p99_ms),
        "cpu, % of one core": fmt.number(state.cpu_percent),
        "held, of wanted": _held_of_wanted(frame),
        "timestamps": state.timestamps,
        "coalesced reads": fmt.percent(state.coalesced_share),
        "workers": fmt.count(state.workers) + (f" on {fmt.counted(len(hosts), 'host')}" if hosts else ""),
    }
    rows = [titled("client", (_trust(frame),), width)]
    if state.limited:
        rows += wrapped(state.why or "reason unknown", width - 1, "bad", most=max(1, height - 1 - len(values)))
    return [*rows, *r.pairs(((label, value, "text") for label, value in values.items()), width)]


def client_strip(frame: Frame) -> Row:
    state = frame.snapshot.client
    if frame.no_load and not state.workers:
        return (*next(iter(served.reported_rows(frame.snapshot.engine or EngineView(), 80)), ()),)
    values = facts(
        "   ",
        ("client  lag p99", f"{fmt.number(state.read_lag_p99_ms):>5} ms", "text"),
        ("cpu", f"{fmt.number(state.cpu_percent):>5} %", "text"),
        ("stamps", f"{state.timestamps:<7}  ", "text"),
    )
    return (*values, _trust(frame), (f": {fmt.plain(state.why)}" if state.limited and state.why else "", "bad"))


def _trust(frame: Frame) -> Word:
    if frame.no_load and not frame.snapshot.client.workers:
        return (fmt.NO_LOAD, "dim")
    return ("! LIMITED", "bad") if frame.snapshot.client.limited else ("ok", "good")


def _held_of_wanted(frame: Frame) -> str:
    """Return the streams held and wanted: the mean of the stage, or the present values while the load moves."""
    stage, load = frame.stage, frame.snapshot.load
    if stage is None:
        return fmt.UNKNOWN
    requested = stage.target
    if requested.moves is not None and stage.running:
        held, wanted = fmt.count(load.held), load.concurrency if requested.rate is None else None
    else:
        held = fmt.number(stage.concurrency.mean)
        wanted = requested.concurrency if requested.moves is None else None
    if load.in_sessions:
        wanted = None  # sessions, whose pauses hold no stream
    return held if wanted is None else f"{held} of {fmt.count(wanted)}"


def host(frame: Frame, width: int, height: int) -> Rows:
    """Return the state of the machine that server and client run on; on one row in a narrow terminal."""
    now = frame.snapshot.host
    mean, busiest, server = (now.cpu_percent, now.cpu_busiest_percent, now.server_cpu_percent) if now else (None,) * 3
    cpu = facts(
        " ",
        ("cpu", f"{fmt.count(mean):>3}%", "warn" if (mean or 0) >= HOST_FULL_PERCENT else "text"),
        ("max", f"{fmt.count(busiest):>3}%", "text"),
        *([("server", f"{fmt.count(server):>4}%", "text")] if frame.snapshot.has_server else []),  # of one core
    )
    used, total, load = (now.memory_used_bytes, now.memory_total_bytes, now.load_1min) if now else (None,) * 3
    gib = f"{fmt.count(fmt.gib(used)):>4}/{fmt.count(fmt.gib(total))}"
    memory = facts(" ", ("memory", gib, "text"), ("GiB load", f"{fmt.number(load):>5}", "text"))
    slowed: Row = ((_slowed_by(now), "warn"),) if now is not None and _slowed_by(now) else ()
    if height == 1:
        return [((" host   ", "dim"), *cpu, *memory, ("  ", "dim"), *slowed)]
    rows = [titled("host", slowed, width), cpu, memory]
    return [*rows, *_host_traffic(now, width)] if now is not None else rows


def _slowed_by(now: HostSample) -> str:
    """Return what slows down the cores: a hypervisor, or else the governor."""
    if now.cpu_steal_percent is not None and now.cpu_steal_percent >= 1:
        return f"steal {now.cpu_steal_percent:.0f}%"
    return f"governor {fmt.plain(now.governor)}" if now.governor and now.governor != "performance" else ""


def _host_traffic(now: HostSample, width: int) -> Rows:
    """Return what there is room for where no server takes it: network, disk and the cores' clock."""
    moved = {
        "network in": now.network_in_bytes_per_s,
        "network out": now.network_out_bytes_per_s,
        "disk read": now.disk_read_bytes_per_s,
        "disk written": now.disk_write_bytes_per_s,
    }
    rows = [(label, f"{fmt.number(fmt.mb(value))} MB/s", "text") for label, value in moved.items()]
    rows.append(("clock, least", f"{fmt.count(now.cpu_mhz)}, {fmt.count(now.cpu_mhz_min)} MHz", "text"))
    return r.pairs(rows, width)


def verdicts(frame: Frame, width: int, height: int) -> Rows:
    """Return what limits the stage and what is wrong with the GPUs, the bad ones first.

    Verdicts are wrapped if all of them fit, else cut to one row each; those that still do not fit are counted.
    """
    found, room = frame.snapshot.verdicts, max(0, height - 1)
    bad, more = sum(verdict.bad for verdict in found), len(found) - room
    whole: Rows = []
    for verdict in found:
        at, *head, (text, role) = _verdict_row(verdict)
        whole += [(at, *row) for row in r.hanging(tuple(head), text, width, role)]
    rows = whole if len(whole) <= room else [_verdict_row(verdict) for verdict in found[:room]]
    legend: list[Word] = [(f"+{more} more  ", "dim")] if more > 0 else []
    legend.append((f"{bad} bad", "bad") if bad else ("nothing bad", "dim"))
    return [titled("verdicts", tuple(legend), width), *rows]


def _verdict_row(verdict: Verdict) -> Row:
    sign: Word = (" ! ", "bad") if verdict.bad else (" · ", "dim")
    subject: Word = (f"{fmt.plain(verdict.subject)}  ", "text")
    return (r.target(verdict_name(verdict)), sign, subject, (fmt.plain(verdict.text), "bad" if verdict.bad else "dim"))


def verdict_name(verdict: Verdict) -> str:
    return f"{verdict.id} of {verdict.subject}"


def engine(frame: Frame, width: int, height: int) -> Rows:
    """Return the gauges as a table: the total, then each engine, then each server.

    The last seconds of a server that is down are dim.
    """
    snapshot = frame.snapshot
    if snapshot.engine is None:
        return [titled("engine", (("publishes no metrics, or none read yet", "dim"),), width)]
    room = width - served.TABLE - GAP
    is_wide = room >= _NAME + _CELL * len(ENGINE)
    state: Row = () if _is_up(frame) else ((f"{snapshot.server.state}  ", "warn"),)
    start = snapshot.server.start
    pool = f"KV {fmt.count(start.kv_cache_tokens)} tokens  " if start is not None and start.kv_cache_tokens else ""
    url: Row = (*state, (pool + fmt.plain(snapshot.server.url), "dim"))
    rows = _gauges(frame)
    reported = served.reported_rows(snapshot.engine, room if is_wide else width)
    if snapshot.engine.unavailable:
        unavailable = "; ".join(
            f"{fmt.plain(name)}: {fmt.plain(why)}" for name, why in snapshot.engine.unavailable.items()
        )
        reported += wrapped(f"not reported: {unavailable}", room if is_wide else width, "dim")
    reported = _if_up(frame, reported) + _compared(frame, width)
    table = _if_up(frame, served.latency_table(snapshot.engine))
    if table and is_wide:
        left = [titled("engine", url, room), *rows, *reported]
        return r.side_by_side([(left, room), ([(), *table], served.TABLE)], height)
    if len(rows) + 1 + len(table) > height:
        table = _if_up(frame, [served.latency_strip(snapshot.engine, "ttft", "tpot", "queue", "prefill")])
    return [titled("engine", url, width), *rows, *table, *reported]


def _gauges(frame: Frame) -> Rows:
    rows: Rows = [((" " * _NAME + _cells(ENGINE), "dim"),)]
    for name, each in engines(frame):
        role = "strong" if name == "all" else "text"
        figures = _cells(figure(each) for figure in ENGINE.values())
        rows.append(((f" {r.padded(fmt.plain(name), _NAME - 1)}", role), (figures, "text")))
    for one in frame.snapshot.server.instances:
        gauges = (fmt.count(one.running), fmt.count(one.waiting), fmt.percent(one.kv_usage))
        rows.append(
            (
                (f" {'server':<{_NAME - 1}}", "text"),
                (_cells(gauges if one.state == "ready" else [fmt.UNKNOWN] * len(gauges)), "text"),
                (f"  {one.state}", _STATE_ROLES.get(one.state, "warn")),
                (f"  {fmt.plain(one.url)}{f'  pid {one.pid}' if one.pid is not None else ''}", "dim"),
            )
        )
    return rows


def _compared(frame: Frame, width: int) -> Rows:
    """Return the engine's figures against the hardware's peak, others' load, the client's figures and the start."""
    compute, others = frame.snapshot.compute, frame.snapshot.others
    rows: Rows = []
    if compute is not None:
        rows.append(((" MFU ", "text"), (fmt.plain(mfu_words(compute)), "dim")))
    if others is not None and others.seen:
        rows.append(((" others ", "text"), (others.words, "dim")))
    start = frame.snapshot.server.start
    of_start = "; ".join(start.words) if start is not None else ""
    return [*rows, *_crosscheck(frame, width), *wrapped(fmt.plain(of_start), width, "dim")]


def _if_up(frame: Frame, rows: Rows) -> Rows:
    return rows if _is_up(frame) else [r.in_role(row, "dim") for row in rows]


def engines(frame: Frame) -> list[tuple[str, EngineView]]:
    """Return the total, then each engine of a data-parallel server."""
    together, now = frame.snapshot.engine, _engine_now(frame)
    if together is None:
        return []
    return [("all", now), *((f"engine {name}", now.engines.get(name, now)) for name in sorted(together.engines))]


def _cells(values: Iterable[str]) -> str:
    return "".join(f"{value:>{_CELL}}" for value in values)


def _crosscheck(frame: Frame, width: int) -> Rows:
    """Return the comparison of client and engine for the last stage that has one."""
    answers: dict[bool | None, Word] = {
        True: ("agree", "good"),
        False: ("DISAGREE", "bad"),
        None: ("not compared", "dim"),
    }
    for stage in reversed(frame.snapshot.stages):
        if stage.truth is not None:
            head: Row = ((f" client and engine, stage {stage.number}: ", "text"), answers[stage.truth.agrees])
            return [head, *wrapped(stage.truth.words, width, "dim", _INDENT)]
    return []


def hosts(frame: Frame, width: int, height: int) -> Rows:
    """Draw a row for each host that drives the load, with its share, latencies, client and clock."""
    found = frame.snapshot.hosts
    if not found:
        return [titled("hosts", (("this machine drives the load", "dim"),), width)]
    ends = accumulate(max(column.width, 1) for column in host_columns()[1:])
    figures = [column for column, end in zip(host_columns()[1:], ends, strict=True) if end <= width - _HOST]
    # If not all fit, those that need attention come first; otherwise they keep their order.
    worst_first = sorted(found, key=lambda host: (not host.lost, host.why is None))
    room = max(1, height - 2)
    shown = found if len(found) <= room else worst_first[:room]

    lost = sum(host.lost for host in found)
    state: Word = (f"! {lost} of {len(found)} LOST", "bad") if lost else (fmt.counted(len(found), "host"), "dim")
    more: Row = ((f"+{len(found) - room} more  ", "dim"), state) if len(found) > room else (state,)
    rows = [titled("hosts", more, width), (("  host".ljust(_HOST), "dim"), *head_words(figures))]
    for host in shown:
        role = "bad" if host.lost else "warn" if host.why is not None else "text"
        name = f"{' ' if role == 'text' else '!'} {fmt.plain(host.name)}"
        cells = [(fmt.plain(text), role if host.lost else own) for text, own in cell_words(figures, [host], role)]
        rows.append(((r.padded(name, _HOST), role), *cells))
    for host in worst_first:  # what the columns have no room for
        clock = f"clock {host.offset_ms:+.2f} ms from ours, known to {host.uncertainty_ms:.2f} ms"
        words = "; ".join(word for word in (host.why, clock, f"RTT {fmt.number(host.rtt_ms)} ms") if word)
        rows += wrapped(f"{fmt.plain(host.name)}: {fmt.plain(words)}", width, "dim", 2)
    return rows[:height]
