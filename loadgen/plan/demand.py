"""What a stage will ask of the client: streams at once, tokens a second; and how many workers that takes."""

from __future__ import annotations

from collections.abc import Sequence

from loadgen.cores import usable_cores
from loadgen.plan.stage import Stage

SLOW_TOKEN_S = 0.05
"""A token under heavy load, to guess how many streams an open loop has in flight before anything is known."""
_STREAMS_A_WORKER = 512
_TOKENS_A_WORKER = 25_000  # A second: a half of a core, at 10 to 25 us a token
_REQUESTS_A_WORKER = 500  # A second: each has a prompt to be written, and its own time to be sent at


def streams_of(stage: Stage, token_s: float) -> int:
    """How many streams it has open at once, at so much time a token of a stream (Little's law)."""
    if stage.rate is None:
        return stage.most_streams or 0
    bounds = [bound for bound in (stage.requests, stage.most) if bound is not None]
    return min([round(_peak_rate(stage) * stage.osl * token_s), *bounds])


def workers_for(wanted: int | None, stages: Sequence[Stage], *, servers: int, token_s: float | None = None) -> int:
    """How many workers the heaviest of these stages takes, as many for each server; `token_s` where it is known.

    A wanted number is what it is; otherwise no more than `most_workers`.
    """
    most = most_workers(wanted, servers=servers)
    if wanted is not None:
        return most
    needed = max((_needed(stage, token_s) for stage in stages), default=1)
    return min(most, _for_each(servers, needed))


def most_workers(wanted: int | None, *, servers: int) -> int:
    """How many workers there may ever be: the wanted number, or for half of the cores that may be used."""
    return _for_each(servers, wanted or max(1, int(usable_cores()) // 2))


def _needed(stage: Stage, token_s: float | None) -> int:
    streams, requests_per_s = streams_of(stage, token_s or SLOW_TOKEN_S), _peak_rate(stage)
    # Of streams that are held nothing is known before they have run.
    unheld_per_s = requests_per_s * stage.osl if stage.most is None else 0.0
    tokens_per_s = streams / token_s if token_s else unheld_per_s
    return max(
        1,
        -(-streams // _STREAMS_A_WORKER),
        -int(-tokens_per_s // _TOKENS_A_WORKER),
        -int(-requests_per_s // _REQUESTS_A_WORKER),
    )


def _peak_rate(stage: Stage) -> float:
    return max((rate for _, rate in stage.rate_points), default=stage.rate or 0.0)


def _for_each(servers: int, workers: int) -> int:
    return -(-workers // servers) * servers
