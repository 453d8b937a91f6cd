"""The searches for a load, a row each, and the keys of `[plan]`, each of which is a plan.

A new search is a row, its name in `SearchName` and the module that makes it; profiles, command line, dialogs, events
and reports read the rows.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PLAN_KEYS = ("ladder", "ramp", "soak", "search")
SearchName = Literal["slo", "knee"]


class SearchKind(msgspec.Struct, frozen=True):
    """One way to look for a load."""

    name: SearchName
    label: str  # what it finds
    choice: str  # what it offers an operator
    maker: str  # `module:function`, `(PlanSettings, start, probe) -> Plan`; not imported before it is needed
    needs_limits: bool = False  # it depends on the limits of `[slo]`
    from_below: bool = False  # it needs loads far below what it finds, and begins there
    refuses_rate: str = ""  # why it cannot vary the rate of an open loop; empty if it can


SEARCHES: dict[str, SearchKind] = {
    kind.name: kind
    for kind in (
        SearchKind(
            name="knee",
            label="knee",
            choice="knee: where more concurrency no longer pays for its latency",
            maker="loadgen.plan.knee_search:knee_search",
            from_below=True,
            refuses_rate="goes by concurrency: above its capacity, a rate measures nothing but the queue",
        ),
        SearchKind(
            name="slo",
            label="highest load within the limits",
            choice="SLO: the highest load within the limits of the profile",
            maker="loadgen.plan.slo_search:slo_search",
            needs_limits=True,
        ),
    )
}
