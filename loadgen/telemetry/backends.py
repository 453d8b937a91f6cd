"""Chooses the backends to try on this box, by vendor and in order.

Invariants: no vendor's library is imported or loaded here; without a sign of a vendor's GPU its backends are not tried,
unless requested by name; on a box with GPUs of two vendors, both are watched.
"""

from __future__ import annotations

import importlib.metadata
import os
import pkgutil
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from loadgen.system import text_in
from loadgen.vendors import VENDORS, BackendName, TelemetryMode, Vendor

# -P: never import from the current folder.
PROGRAM = (sys.executable, "-P", "-m", "loadgen.telemetry")


_LIBRARY_FOLDERS: list[str] = """
    usr/lib/x86_64-linux-gnu usr/lib/aarch64-linux-gnu usr/lib64 usr/lib usr/local/nvidia/lib64 usr/lib/wsl/lib
""".split()


class BackendOption(msgspec.Struct, frozen=True):
    """One way to measure: the arguments and environment of its child."""

    name: str
    backend: BackendName
    arguments: tuple[str, ...] = ()  # besides the backend and its interval
    env: Mapping[str, str] = msgspec.field(default_factory=dict)  # additions to the child's environment
    why: str = ""  # why it is tried, and at this place in the order
    program: tuple[str, ...] = PROGRAM  # tests replace it

    def command(self, interval_s: float) -> list[str]:
        return [*self.program, "--backend", self.backend, "--interval-s", str(interval_s), *self.arguments]


def has_sign(vendor: Vendor, environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Whether there is any sign of a GPU or a driver of this vendor, working or not."""
    if vendor.computes_here(root / "dev") or any((root / "dev" / name).exists() for name in vendor.control_files):
        return True
    if any((root / name).exists() for name in vendor.driver_files):
        return True
    named = [Path(folder) for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders = (*named, *(root / each for each in _LIBRARY_FOLDERS))
    if vendor.library and any((folder / vendor.library).exists() for folder in folders):
        return True
    return any(text_in(card / "device/vendor") == vendor.pci_id for card in root.glob("sys/class/drm/card*"))


def backend_options(
    mode: TelemetryMode,
    *,
    url: str | None = None,
    exporters: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
) -> dict[str, list[BackendOption]]:
    """The options of each vendor or exporter, in order; empty if there is nothing to measure.

    `url` is the simulator's, for `sim`; `exporters` are pages with the GPUs of other machines, which `auto` measures in
    place of this one's; `root` is the file system's root, for tests.
    """
    if exporters:
        sources = {} if mode == "auto" else backend_options(mode, url=url, environ=environ, root=root)
        why = "the profile or the command line names it"
        for number, page in enumerate(dict.fromkeys(exporters)):
            # The address without user and query, which may be secret, as a part of a file's name.
            address = re.split("[?#]", page.partition("://")[2])[0].rpartition("@")[2]
            name = re.sub(r"[^\w.-]+", "-", address.removesuffix("/metrics")).strip("-")
            name = f"{name}-{number}" if name in sources else name
            sources[name] = [BackendOption("exporter", "exporter", ("--url", page), why=why)]
        return sources
    if mode == "off":
        return {}
    if mode == "sim":
        arguments = ("--url", url) if url is not None else ()
        return {"sim": [BackendOption("sim", "sim", arguments)]}
    found: dict[str, list[BackendOption]] = {}
    for vendor in VENDORS:
        entries = [entry for entry in vendor.backends if mode in ("auto", entry.name)]
        if entries and (mode != "auto" or has_sign(vendor, environ, root)):
            options = found[vendor.name] = []
            for entry in entries:
                if entry.options:
                    options += pkgutil.resolve_name(entry.options)(environ, root)
                else:
                    options.append(BackendOption(entry.name, entry.name, why=entry.why))
    return found


def package_version(name: str) -> str | None:
    """The version of an installed Python package, without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
