"""A run: server, fleet and journal under one hand, and the snapshots that a screen draws."""

from loadgen.run.run import Run

__all__ = ["Run"]
