"""The engine: what it says of itself over time, each of its data-parallel engines, and each server of several."""

from __future__ import annotations

import textwrap

from loadgen import format as fmt
from loadgen.metrics.journal import EngineView
from loadgen.metrics.snapshot import InstanceView
from tui.panels.frame import Frame
from tui.widgets.rows import Row, Rows, cropped, padded, titled

_HEADS = ("running", "waiting", "KV", "prompt/s", "gen/s", "prefix", "preempt")
_CELL, _NAME, _INDENT = 9, 14, 3


def engine(frame: Frame, width: int, height: int) -> Rows:
    """The gauges as a table: all together, then each engine, then each server."""
    snapshot = frame.snapshot
    if snapshot.engine is None:
        return [titled("engine", (("publishes no metrics, or is not asked yet", "dim"),), width)]
    heads = f" {'':<{_NAME - 1}}" + "".join(f"{head:>{_CELL}}" for head in _HEADS)
    rows: Rows = [titled("engine", ((fmt.plain(snapshot.server.url), "dim"),), width), ((heads, "dim"),)]
    rows += [_row(name, each) for name, each in engines(frame)]
    rows += [_instance(each) for each in snapshot.server.instances]
    rows += _truth(frame, width)
    return [cropped(row, width) for row in rows]


def engines(frame: Frame) -> list[tuple[str, EngineView]]:
    """All together, then each of a data-parallel server."""
    together = frame.snapshot.engine
    if together is None:
        return []
    return [("all", together), *((f"engine {name}", each) for name, each in sorted(together.engines.items()))]


def figures(engine: EngineView) -> list[str]:
    return [
        fmt.count(engine.running),
        fmt.count(engine.waiting),
        fmt.percent(engine.kv_usage),
        fmt.number(engine.prompt_tokens_per_s),
        fmt.number(engine.generation_tokens_per_s),
        fmt.percent(engine.prefix_hit_rate),
        fmt.count(engine.preemptions),
    ]


HEADS = _HEADS


def _row(name: str, engine: EngineView) -> Row:
    cells = "".join(f"{value:>{_CELL}}" for value in figures(engine))
    return ((f" {padded(fmt.plain(name), _NAME - 1)}", "strong" if name == "all" else "text"), (cells, "text"))


def _instance(one: InstanceView) -> Row:
    gauges = (fmt.count(one.running), fmt.count(one.waiting), fmt.percent(one.kv_usage))
    role = {"ready": "good", "died": "bad"}.get(one.state, "warn")
    return (
        (f" {'server':<{_NAME - 1}}", "text"),
        ("".join(f"{value:>{_CELL}}" for value in gauges), "text"),
        (f"  {one.state}", role),
        (f"  {fmt.plain(one.url)}{f'  pid {one.pid}' if one.pid is not None else ''}", "dim"),
    )


def _truth(frame: Frame, width: int) -> Rows:
    """What client and engine said of the last stage of which both have had their word."""
    told = next((stage for stage in reversed(frame.snapshot.stages) if stage.truth), None)
    if told is None:
        return []
    role = {True: "good", False: "bad", None: "dim"}[told.truth_agrees]
    words = {True: "agree", False: "DISAGREE", None: "not compared"}[told.truth_agrees]
    head: Row = ((f" client and engine, stage {told.number}: ", "text"), (words, role))
    lines = textwrap.wrap(fmt.plain(told.truth), max(20, width - _INDENT))
    return [head, *[((" " * _INDENT, "text"), (line, "dim")) for line in lines]]
