"""Checks of how the operating system is set: limits of processes, and settings that cost speed without a word."""

from __future__ import annotations

from collections.abc import Iterator

from loadgen.metrics.journal import Finding, Severity
from loadgen.plan.demand import SLOW_TOKEN_S, most_workers, streams_of
from loadgen.server.preflight.box import Setup, read_setting

_SPARE_FILES = 64  # what a process has open besides its connections
_SPARE_FILES_OF_SERVER = 256
_WANTED_FILES = 65_536
_FASTEST_TOKEN_S = 0.0005


def open_files(setup: Setup) -> Iterator[Finding]:
    """The limit of open files, against the connections of the plan: first of the workers, then of the server."""
    peak = max((streams_of(stage, SLOW_TOKEN_S) for stage in setup.plan), default=0)
    # Open even on a server that is faster than any.
    certain = max((streams_of(stage, _FASTEST_TOKEN_S) for stage in setup.plan), default=0)
    workers = most_workers(setup.profile.load.workers, servers=setup.server.instances)
    of_server = -(-certain // setup.server.instances)
    soft, hard = setup.box.open_files
    # Servers raise their own limit as far as they may; a container has limits of its own.
    limits_server = setup.server.engine in ("vllm", "simulator")
    if soft < -(-certain // workers) + _SPARE_FILES:
        yield _too_few_files("blocks", setup, peak, f"{certain} streams cannot all be opened")
    elif limits_server and hard < of_server + _SPARE_FILES_OF_SERVER:
        yield _too_few_files("blocks", setup, peak, f"the server cannot take {of_server} of them")
    elif soft < peak // (setup.profile.load.workers or 1) + _SPARE_FILES:
        yield _too_few_files("warns", setup, peak, f"a worker may get many of {peak} streams")


def _too_few_files(severity: Severity, setup: Setup, peak: int, consequence: str) -> Finding:
    soft, hard = setup.box.open_files
    wanted = max(_WANTED_FILES, 2 ** (peak + _SPARE_FILES_OF_SERVER).bit_length())
    command = f"ulimit -n {wanted}" if hard >= wanted else f"sudo prlimit --pid $$ --nofile={wanted}:{wanted}"
    seen = f"a process may have {soft} files open, and raise that to {hard}"
    why = f"each stream is an open file, and {consequence}: what exceeds the limit fails with Too many open files"
    return Finding("open-files", severity, seen, why, f"{command}, in the shell that starts vramp")


def governor(setup: Setup) -> Iterator[Finding]:
    """CPU frequency that waits for load before it rises."""
    folders = [
        path.parent for path in (setup.box.sys / "devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    ]
    found = {folder: read_setting(folder / "scaling_governor") for folder in folders}
    slow = [folder for folder, name in found.items() if name not in (None, "performance")]
    # Processors that steer themselves are asked by a preference, whatever the governor is called.
    slow = [folder for folder in slow if read_setting(folder / "energy_performance_preference") != "performance"]
    if slow:
        names = ", ".join(sorted({found[folder] or "" for folder in slow}))
        yield Finding(
            "cpu-governor",
            "warns",
            f"{len(slow)} of {len(found)} CPUs have the governor {names}",
            "the processor rises to full speed only after load has come: powersave alone has doubled the TTFT that a "
            "client measured, with the engine unchanged",
            "sudo cpupower frequency-set -g performance",
            "aiperf issue 1424",
        )


def clock(setup: Setup) -> Iterator[Finding]:
    """A clock that nothing keeps right."""
    if setup.box.clock_synchronised is False:
        yield Finding(
            "clock-unsynchronised",
            "info",
            "the kernel's clock is not synchronised",
            "times in logs and results cannot be compared with those of other machines, and a daemon that starts "
            "during a run may step the clock, which spoils the streams that it hits",
            "sudo timedatectl set-ntp true, and wait until timedatectl says that it is synchronised",
        )


def numa_balancing(setup: Setup) -> Iterator[Finding]:
    """Memory that the kernel moves between nodes."""
    value = read_setting(setup.box.proc / "sys/kernel/numa_balancing")
    if value is None or value == "0":
        return
    amd = setup.platform == "rocm"
    yield Finding(
        "numa-balancing",
        "info" if setup.platform == "cpu" else "warns",
        f"kernel.numa_balancing is {value}",
        "the kernel unmaps pages again and again to see who uses them, which stalls the server"
        + ("; on AMD's GPUs it can make them hang until the balancing is done" if amd else ""),
        "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'",
        "Serving LLMs on AMD MI300X: Best Practices, case 5" if amd else "",
    )


def huge_pages(setup: Setup) -> Iterator[Finding]:
    """No large pages, not even for programs that ask for them."""
    value = read_setting(setup.box.sys / "kernel/mm/transparent_hugepage/enabled")
    if value is not None and "[never]" in value:
        yield Finding(
            "huge-pages",
            "warns" if setup.platform == "cpu" else "info",
            "transparent huge pages are switched off",
            "programs that ask for large pages do not get them, which costs time at each new page of host memory",
            "sudo sh -c 'echo madvise > /sys/kernel/mm/transparent_hugepage/enabled'",
            "AMD ZenDNN user guide (57300): madvise for LLMs",
        )
