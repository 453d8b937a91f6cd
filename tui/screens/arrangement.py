"""Which panels show: the classes that the screen sets on itself by phase and view; the style sheet does the rest."""

from __future__ import annotations

from collections.abc import Mapping

from tui.panels import load
from tui.panels.frame import Frame
from tui.screens.pages import OVERVIEW

_FEW_GPUS, _SOME_GPUS = 2, 4  # up to this many leave room to the stages


def arrangement(view: Frame, page: str, *, full: bool, width: int) -> Mapping[str, bool]:
    """Class to whether it is set; one that is already set costs nothing."""
    snapshot = view.snapshot
    checking = snapshot.phase in ("checking", "blocked")
    starting = checking or snapshot.phase in ("starting", "restarting", "probing", "failed")
    classes = {
        "-paged": page != OVERVIEW,
        "-full": full,
        "-startup": starting or snapshot.server.state == "died",
        "-findings": checking,
        "-empty": starting and not snapshot.stages,
        "-baseline": snapshot.baseline is not None,
        "-errors": bool(snapshot.errors),
        "-notice": bool(load.notice(view, width, 1)),
        "-stale": view.stale,
    }
    return classes | _of_gpus(view)


def _of_gpus(view: Frame) -> dict[str, bool]:
    """No more room than there are GPUs; a row that says why there are none, unless nobody wants to know."""
    count = len(view.snapshot.gpus)
    return {
        "-gpus": count > 0,
        "-few-gpus": 0 < count <= _FEW_GPUS,
        "-some-gpus": _FEW_GPUS < count <= _SOME_GPUS,
        "-no-gpus": not count and view.snapshot.telemetry not in ("", "off"),
    }
