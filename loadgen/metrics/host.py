"""What is known of the host: cores, memory, disks, network, and the processes of the server."""

from __future__ import annotations

import msgspec


class HostSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """The host at one moment, and what it did since the sample before; None is "not known"."""

    t_s: float  # CLOCK_MONOTONIC
    cores: int  # logical ones
    memory_used_bytes: int  # what is not available to new processes without swapping
    memory_total_bytes: int
    load_1min: float
    cpu_percent: float | None = None  # of all cores, 0 to 100
    cpu_busiest_percent: float | None = None
    """Of the busiest core: a single thread that is the limit shows here, and not in the mean."""
    server_cpu_percent: float | None = None  # of the server's processes; 100 is one core
    server_rss_bytes: int | None = None  # resident memory of the server's processes; what they share counts for each
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    network_in_bytes_per_s: float | None = None  # without the loopback, over which the load of a local server goes
    network_out_bytes_per_s: float | None = None
    open_files: dict[int, int] = {}  # descriptors by process, for those asked for
    cpu_mhz: float | None = None  # the mean of a few cores, spread over all
    cpu_mhz_min: float | None = None
    governor: str | None = None  # of the cores' frequency; several are listed
