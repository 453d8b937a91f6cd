"""The hosts that drive the load, with the share, latencies, client and clock of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from loadgen import format as fmt
from loadgen.report.columns import host_columns
from loadgen.report.tabular import Column
from loadgen.schema.result import HostResult
from tui.panels.frame import Frame
from tui.panels.stages import cell_words, head_words
from tui.widgets.rows import Row, Rows, Word, padded, titled, wrapped

_NAME = 16


def hosts(frame: Frame, width: int, height: int) -> Rows:
    found = frame.snapshot.hosts
    if not found:
        return [titled("hosts", (("this machine drives the load", "dim"),), width)]
    ends = accumulate(max(column.width, 1) for column in host_columns()[1:])
    figures = [column for column, end in zip(host_columns()[1:], ends, strict=True) if end <= width - _NAME]
    lost = sum(host.lost for host in found)
    state: Word = (f"! {lost} of {len(found)} LOST", "bad") if lost else (fmt.counted(len(found), "host"), "dim")
    heads: Row = (("  host".ljust(_NAME), "dim"), *head_words(figures))
    room = max(1, height - 2)
    # If not all fit, those that need attention come first; otherwise they keep their order.
    shown = found if len(found) <= room else _worst_first(found)[:room]
    more: Row = ((f"+{len(found) - room} more  ", "dim"), state) if len(found) > room else (state,)
    rows = [titled("hosts", more, width), heads, *(_row(host, figures) for host in shown)]
    return [*rows, *_notes(found, width)][:height]


def _worst_first(found: Sequence[HostResult]) -> list[HostResult]:
    return sorted(found, key=lambda host: (not host.lost, host.why is None))


def _notes(found: Sequence[HostResult], width: int) -> Rows:
    """Return the details that the columns have no room for."""
    rows: Rows = []
    for host in _worst_first(found):
        clock = f"clock {host.offset_ms:+.2f} ms from ours, known to {host.uncertainty_ms:.2f} ms"
        words = "; ".join(word for word in (host.why, clock, f"RTT {fmt.number(host.rtt_ms)} ms") if word)
        rows += wrapped(f"{fmt.plain(host.name)}: {fmt.plain(words)}", width, "dim", 2)
    return rows


def _row(host: HostResult, figures: list[Column[HostResult]]) -> Row:
    sign = "!" if host.lost or host.why is not None else " "
    role = "bad" if host.lost else "warn" if host.why is not None else "text"
    name: Word = (padded(f"{sign} {fmt.plain(host.name)}", _NAME), role)
    return (name, *((fmt.plain(text), role if host.lost else own) for text, own in cell_words(figures, [host], role)))
