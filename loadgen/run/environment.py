"""What machine and installation a run happened on: part of every result."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil


def describe_environment() -> dict[str, Any]:
    """Host, processor, memory and versions; unknown is None."""
    return {
        "host": platform.node(),
        "os": platform.platform(),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpu_cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "gpus": [],
    }


def _cpu_model() -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or None
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else None
