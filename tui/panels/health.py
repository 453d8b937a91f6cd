"""Server, client and host, the engine's gauges, and the verdicts: what is the limit?"""

from __future__ import annotations

from collections.abc import Iterable

from loadgen import format as fmt
from loadgen.metrics.verdicts import HOST_FULL_PERCENT
from loadgen.report.notes import mfu_words
from loadgen.schema.engine import EngineView
from loadgen.schema.finding import Verdict
from loadgen.schema.samples import HostSample
from loadgen.schema.snapshot import InstanceView
from tui.panels import served
from tui.panels.frame import Frame
from tui.widgets.rows import (
    GAP,
    Row,
    Rows,
    Word,
    bar,
    cropped,
    facts,
    in_role,
    padded,
    side_by_side,
    spread,
    target,
    titled,
    width_of,
    wrapped,
    wrapped_to,
)

ENGINE_HEADS = ("running", "waiting", "KV", "prompt/s", "gen/s", "prefix", "preempt")
_CELL, _NAME, _INDENT = 9, 14, 3


def server(frame: Frame, width: int, height: int) -> Rows:
    """Return the engine's own gauges; unknown if it publishes no metrics, or does not run."""
    engine, state = _engine_now(frame), frame.snapshot.server.state
    kv, preempted = _kv(engine), engine.preemptions
    return [
        titled("server", ((state, "bad" if state == "died" else "dim"),), width),
        facts("  ", *_queue(engine)),
        ((" KV ", "dim"), *bar(engine.kv_usage, max(0, width - 11), kv[1]), (" ", "text"), kv),
        facts("", ("preempted", f"{fmt.count(preempted):>5}", "warn" if preempted else "text")),
    ]


def server_strip(frame: Frame) -> Row:
    engine, failed = _engine_now(frame), sum(error.count for error in frame.snapshot.errors)
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
    state = frame.snapshot.client
    if frame.no_load and not state.workers:
        return served.requests(frame, width, height)
    values = {
        "read lag p99, ms": fmt.number(state.read_lag_p99_ms),
        "cpu, % of one core": fmt.number(state.cpu_percent),
        "held, of wanted": _held_of_wanted(frame),
        "timestamps": state.timestamps,
        "coalesced reads": fmt.percent(state.coalesced_share),
        "workers": _workers(frame),
    }
    rows = [titled("client", (_trust(frame),), width)]
    if state.limited:
        rows += wrapped_to(state.why or "reason unknown", width - 1, "bad", max(1, height - 1 - len(values)))
    for label, value in values.items():
        rows.append(spread(((f" {label}", "dim"),), cropped(((value, "text"),), width - 4), width - 1))
    return rows


def _workers(frame: Frame) -> str:
    count, machines = fmt.count(frame.snapshot.client.workers), frame.snapshot.hosts
    return f"{count} on {fmt.counted(len(machines), 'host')}" if machines else count


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
    # Only what slows down the cores is worth showing: a hypervisor, or else the governor.
    steal = now.cpu_steal_percent if now is not None else None
    slow = now.governor if now is not None and now.governor != "performance" else None
    words = f"steal {steal:.0f}%" if steal is not None and steal >= 1 else f"governor {fmt.plain(slow)}" if slow else ""
    slowed: Row = ((words, "warn"),) if words else ()
    if height == 1:
        return [cropped(((" host   ", "dim"), *cpu, *memory, ("  ", "dim"), *slowed), width)]
    rows = [titled("host", slowed, width), cropped(cpu, width), cropped(memory, width)]
    return [*rows, *_host_traffic(now, width)][: max(3, height)]


def _host_traffic(now: HostSample | None, width: int) -> Rows:
    """Return what there is room for where no server takes it: network, disk and the cores' clock."""
    if now is None:
        return []
    moved = {
        "network in": now.network_in_bytes_per_s,
        "network out": now.network_out_bytes_per_s,
        "disk read": now.disk_read_bytes_per_s,
        "disk written": now.disk_write_bytes_per_s,
    }
    rows = [(label, f"{fmt.number(fmt.mb(value))} MB/s") for label, value in moved.items()]
    rows.append(("clock, least", f"{fmt.count(now.cpu_mhz)}, {fmt.count(now.cpu_mhz_min)} MHz"))
    return [spread(((f" {label}", "dim"),), ((text, "text"),), width - 1) for label, text in rows]


def verdicts(frame: Frame, width: int, height: int) -> Rows:
    """Return what limits the stage and what is wrong with the GPUs, the bad ones first.

    Verdicts are wrapped if all of them fit, else cut to one row each; those that still do not fit are counted.
    """
    found, room = frame.snapshot.verdicts, max(0, height - 1)
    bad, more = sum(verdict.bad for verdict in found), len(found) - room
    whole = [row for verdict in found for row in _verdict(verdict, width)]
    rows = whole if len(whole) <= room else [cropped(_verdict_row(verdict), width) for verdict in found[:room]]
    legend: list[Word] = [(f"+{more} more  ", "dim")] if more > 0 else []
    legend.append((f"{bad} bad", "bad") if bad else ("nothing bad", "dim"))
    return [titled("verdicts", tuple(legend), width), *rows]


def _verdict(verdict: Verdict, width: int) -> Rows:
    at, sign, subject, (text, role) = _verdict_row(verdict)
    indent = width_of((sign, subject))
    first, *others = wrapped(text, width, role, indent) or [((" " * indent, role),)]
    return [(at, sign, subject, *first[1:]), *[(at, *row) for row in others]]


def _verdict_row(verdict: Verdict) -> Row:
    sign: Word = (" ! ", "bad") if verdict.bad else (" · ", "dim")
    subject: Word = (f"{fmt.plain(verdict.subject)}  ", "text")
    return (target(verdict_name(verdict)), sign, subject, (fmt.plain(verdict.text), "bad" if verdict.bad else "dim"))


def verdict_name(verdict: Verdict) -> str:
    """Return the unique name of a verdict, such as `straggler of gpu 5`."""
    return f"{verdict.id} of {verdict.subject}"


def engine(frame: Frame, width: int, height: int) -> Rows:
    """Return the gauges as a table: the total, then each engine, then each server.

    The last seconds of a server that is down are dim.
    """
    snapshot = frame.snapshot
    if snapshot.engine is None:
        return [titled("engine", (("publishes no metrics, or none read yet", "dim"),), width)]
    room = width - served.TABLE - GAP
    is_wide = room >= _NAME + _CELL * len(ENGINE_HEADS)
    state: Row = () if _is_up(frame) else ((f"{snapshot.server.state}  ", "warn"),)
    url: Row = (*state, (fmt.plain(snapshot.server.url), "dim"))
    rows = _gauges(frame)
    reported = _if_up(frame, _engine_reported(snapshot.engine, room if is_wide else width)) + _compared(frame, width)
    table = _if_up(frame, served.latency_table(snapshot.engine))
    if table and is_wide:
        return side_by_side(
            [([titled("engine", url, room), *rows, *reported], room), ([(), *table], served.TABLE)], height
        )
    if len(rows) + 1 + len(table) > height:
        table = _if_up(frame, [served.latency_strip(snapshot.engine, "ttft", "tpot", "queue", "prefill")])
    return [cropped(row, width) for row in (titled("engine", url, width), *rows, *table, *reported)]


def _gauges(frame: Frame) -> Rows:
    rows: Rows = [((" " * _NAME + _cells(ENGINE_HEADS), "dim"),)]
    for name, each in engines(frame):
        role = "strong" if name == "all" else "text"
        rows.append(((f" {padded(fmt.plain(name), _NAME - 1)}", role), (_cells(engine_figures(each)), "text")))
    return [*rows, *(_instance(each) for each in frame.snapshot.server.instances)]


def _compared(frame: Frame, width: int) -> Rows:
    """The engine's figures beside the hardware's peak, others' load and what the client has measured."""
    compute, others = frame.snapshot.compute, frame.snapshot.others
    rows: Rows = []
    if compute is not None:
        rows.append(((" MFU ", "text"), (fmt.plain(mfu_words(compute)), "dim")))
    if others is not None and others.seen:
        rows.append(((" others ", "text"), (others.words, "dim")))
    return [*rows, *_crosscheck(frame, width)]


def _if_up(frame: Frame, rows: Rows) -> Rows:
    return rows if _is_up(frame) else [in_role(row, "dim") for row in rows]


def _engine_reported(engine: EngineView, width: int) -> Rows:
    """Return what becomes of the engine's requests, and what it does not report."""
    lacks = "; ".join(f"{fmt.plain(name)}: {fmt.plain(why)}" for name, why in engine.lacks.items())
    return [*served.reported_rows(engine, width), *(wrapped(f"not reported: {lacks}", width, "dim") if lacks else [])]


def engines(frame: Frame) -> list[tuple[str, EngineView]]:
    """Return the total, then each engine of a data-parallel server."""
    together, now = frame.snapshot.engine, _engine_now(frame)
    if together is None:
        return []
    return [("all", now), *((f"engine {name}", now.engines.get(name, now)) for name in sorted(together.engines))]


def engine_figures(engine: EngineView) -> list[str]:
    """Return an engine's figures in the order of `ENGINE_HEADS`."""
    return [
        fmt.count(engine.running),
        fmt.count(engine.waiting),
        fmt.percent(engine.kv_usage),
        fmt.number(engine.prompt_tokens_per_s),
        fmt.number(engine.generation_tokens_per_s),
        fmt.percent(engine.prefix_hit_rate),
        fmt.count(engine.preemptions),
    ]


def _cells(values: Iterable[str]) -> str:
    return "".join(f"{value:>{_CELL}}" for value in values)


def _instance(one: InstanceView) -> Row:
    role = {"ready": "good", "died": "bad"}.get(one.state, "warn")
    gauges = (fmt.count(one.running), fmt.count(one.waiting), fmt.percent(one.kv_usage))
    return (
        (f" {'server':<{_NAME - 1}}", "text"),
        (_cells(gauges if one.state == "ready" else [fmt.UNKNOWN] * len(gauges)), "text"),
        (f"  {one.state}", role),
        (f"  {fmt.plain(one.url)}{f'  pid {one.pid}' if one.pid is not None else ''}", "dim"),
    )


def _crosscheck(frame: Frame, width: int) -> Rows:
    """Return the comparison of client and engine for the last stage that has one."""
    for stage in reversed(frame.snapshot.stages):
        if stage.truth is not None:
            answer: Word = ("agree", "good") if stage.truth.agrees else ("DISAGREE", "bad")
            if stage.truth.agrees is None:
                answer = ("not compared", "dim")
            head: Row = ((f" client and engine, stage {stage.number}: ", "text"), answer)
            return [head, *wrapped(stage.truth.words, width, "dim", _INDENT)]
    return []
