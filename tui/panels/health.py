"""Server, client and host side by side, and the verdicts: whose fault is it, and may the numbers be trusted?"""

from __future__ import annotations

from loadgen import format as fmt
from loadgen.metrics.result import Verdict
from loadgen.metrics.verdicts import HOST_FULL_PERCENT
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, Word, bar, cropped, spread, titled


def server(frame: Frame, width: int, height: int) -> Rows:
    """What the engine says of itself; unknown where it publishes no metrics."""
    engine = frame.snapshot.engine
    running, waiting, kv, preempted = (
        (engine.running, engine.waiting, engine.kv_usage, engine.preemptions) if engine else (None,) * 4
    )
    state = frame.snapshot.server.state
    legend: Row = ((state, "bad" if state == "died" else "dim"),)
    return [
        titled("server", legend, width),
        (
            (" running ", "dim"),
            (f"{fmt.count(running):>5}", "running"),
            ("  waiting ", "dim"),
            (f"{fmt.count(waiting):>5}", "waiting"),
        ),
        ((" KV ", "dim"), *bar(kv, max(0, width - 11), _kv_role(kv)), (f" {fmt.percent(kv):>5}", _kv_role(kv))),
        ((" preempted ", "dim"), (f"{fmt.count(preempted):>5}", "warn" if preempted else "text")),
    ]


def client(frame: Frame, width: int, height: int) -> Rows:
    """Our own health, and the reason when it is not good."""
    state = frame.snapshot.client
    rows = [
        titled("client", (_trust(frame),), width),
        _pair("read lag p99, ms", fmt.number(state.read_lag_p99_ms), width),
        _pair("cpu, % of one core", fmt.number(state.cpu_percent), width),
        _pair("held, of wanted", _held_of_wanted(frame), width),
        _pair("timestamps", state.timestamps, width),
        _pair("coalesced reads", fmt.percent(state.coalesced_share), width),
        _pair("workers", fmt.count(state.workers), width),
    ]
    if state.limited:
        rows.insert(1, cropped(((" " + fmt.plain(state.why or "reason unknown"), "bad"),), width))
    return rows


def host(frame: Frame, width: int, height: int) -> Rows:
    """The machine that the server and we run on; one row across a narrow terminal."""
    if height == 1:
        return [
            cropped(
                ((" host   ", "dim"), *_host_cpu(frame), *_host_memory(frame), ("  ", "dim"), *_governor(frame)), width
            )
        ]
    return [
        titled("host", _governor(frame), width),
        cropped(_host_cpu(frame), width),
        cropped(_host_memory(frame), width),
    ]


def verdicts(frame: Frame, width: int, height: int) -> Rows:
    """What limits the stage and what is wrong with the GPUs, the bad ones first; what has no room is counted."""
    found, room = frame.snapshot.verdicts, max(0, height - 1)
    bad, more = sum(verdict.bad for verdict in found), len(found) - room
    legend: list[Word] = [(f"+{more} more  ", "dim")] if more > 0 else []
    legend.append((f"{bad} bad", "bad") if bad else ("nothing bad", "dim"))
    return [titled("verdicts", tuple(legend), width), *[_verdict(verdict, width) for verdict in found[:room]]]


def server_strip(frame: Frame) -> Row:
    engine = frame.snapshot.engine
    running, waiting, kv = (engine.running, engine.waiting, engine.kv_usage) if engine else (None,) * 3
    return (
        (" server  running ", "dim"),
        (f"{fmt.count(running):>5}", "running"),
        ("   waiting ", "dim"),
        (f"{fmt.count(waiting):>5}", "waiting"),
        ("   KV ", "dim"),
        (f"{fmt.percent(kv):>5}", _kv_role(kv)),
        ("   errors ", "dim"),
        _failures(frame),
    )


def client_strip(frame: Frame) -> Row:
    state = frame.snapshot.client
    return (
        (" client  lag p99 ", "dim"),
        (f"{fmt.number(state.read_lag_p99_ms):>5} ms", "text"),
        ("   cpu ", "dim"),
        (f"{fmt.number(state.cpu_percent):>5} %", "text"),
        ("   stamps ", "dim"),
        (f"{state.timestamps:<7}  ", "text"),
        _trust(frame),
        (f": {fmt.plain(state.why)}" if state.limited and state.why else "", "bad"),
    )


def _host_cpu(frame: Frame) -> Row:
    """All cores, the busiest one, and the server's processes, of which 100 % is one core."""
    now = frame.snapshot.host
    mean, busiest, server = (now.cpu_percent, now.cpu_busiest_percent, now.server_cpu_percent) if now else (None,) * 3
    return (
        (" cpu ", "dim"),
        (f"{fmt.count(mean):>3}%", "warn" if (mean or 0) >= HOST_FULL_PERCENT else "text"),
        (" max ", "dim"),
        (f"{fmt.count(busiest):>3}%", "text"),
        (" server ", "dim"),
        (f"{fmt.count(server):>4}%", "text"),
    )


def _host_memory(frame: Frame) -> Row:
    now = frame.snapshot.host
    used, total, load = (now.memory_used_bytes, now.memory_total_bytes, now.load_1min) if now else (None,) * 3
    return (
        (" memory ", "dim"),
        (f"{fmt.count(fmt.gib(used)):>4}/{fmt.count(fmt.gib(total))}", "text"),
        (" GiB load ", "dim"),
        (f"{fmt.number(load):>5}", "text"),
    )


def _governor(frame: Frame) -> Row:
    """Only one that holds the cores back is worth a word."""
    now = frame.snapshot.host
    if now is None or now.governor in (None, "performance"):
        return ()
    return ((f"governor {fmt.plain(now.governor or '')}", "warn"),)


def _verdict(verdict: Verdict, width: int) -> Row:
    sign: Word = (" ! ", "bad") if verdict.bad else (" · ", "dim")
    subject: Word = (f"{fmt.plain(verdict.subject)}  ", "text")
    return cropped((sign, subject, (fmt.plain(verdict.text), "bad" if verdict.bad else "dim")), width)


def _failures(frame: Frame) -> Word:
    total = sum(error.count for error in frame.snapshot.errors)
    return (fmt.count(total), "bad" if total else "text")


def _trust(frame: Frame) -> Word:
    return ("! LIMITED", "bad") if frame.snapshot.client.limited else ("ok", "good")


def _kv_role(usage: float | None) -> str:
    return "warn" if usage is not None and usage >= 0.95 else "text"


def _held_of_wanted(frame: Frame) -> str:
    """Over the stage; of a load that moves, now."""
    stage, load = frame.stage, frame.snapshot.load
    if stage is not None and stage.moves is not None and stage.running:
        return (
            f"{fmt.count(load.held)} of {fmt.count(load.concurrency)}" if stage.rate is None else fmt.count(load.held)
        )
    held = None if stage is None else stage.held_mean
    if stage is None or stage.concurrency is None or stage.moves is not None:
        return fmt.number(held)
    return f"{fmt.number(held)} of {fmt.count(stage.concurrency)}"


def _pair(label: str, value: str, width: int) -> Row:
    return spread(((f" {label}", "dim"),), cropped(((value, "text"),), width - 4), width - 1)
