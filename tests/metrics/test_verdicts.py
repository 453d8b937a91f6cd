"""Verdicts on what limits a stage, as tables."""

from typing import Any

import msgspec
import pytest

from loadgen.metrics.verdicts import (
    GpuFacts,
    StageFacts,
    flags,
    gpu_facts,
    gpu_verdicts,
    kv_limit,
    memory_rate,
    merged,
    queueing,
    stage_verdicts,
)
from loadgen.parts import PARTS
from loadgen.schema.finding import Verdict
from loadgen.schema.samples import GpuSample, GpuStatic
from tests.telemetry.test_h100 import capture, phase


@pytest.mark.parametrize(
    ("load", "rate_percent"),
    [("idle", 0), ("compute", 25), ("copy", 90), ("gemv", 86), ("tiny", 0), ("tiny_graph", 0), ("one_sm", 0)],
)
def test_the_memorys_rate_of_a_real_h100(load: str, rate_percent: float) -> None:
    """NVIDIA's `memory_percent` is 99 for the two that move bytes, and 28 for one that does not."""
    found = phase(load)
    rate = memory_rate(capture().gpu, found.mean("dram_percent"), found.mean("memory_percent"))
    assert rate == pytest.approx(rate_percent, abs=1)
    spoken = [verdict.id for verdict in stage_verdicts("stage 1", StageFacts(memory_rate_percent=rate))]
    assert spoken == (["bandwidth-bound"] if load in ("copy", "gemv") else [])
    assert memory_rate(capture().gpu, None, 99.0) is None


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "kv", "queue"),
    [
        (None, None, None, None),
        (0, 0.99, None, None),
        (0.4, 0.99, None, None),
        (3, 0.2, None, "engine-limited: queueing, 3 waiting"),
        (2.25, None, None, "engine-limited: queueing, 2.2 waiting"),
        (3, 0.97, "KV-limited: 3 waiting, KV cache 97% full", "engine-limited: queueing, 3 waiting"),
    ],
)
def test_the_engine(waiting: float | None, kv_usage: float | None, kv: str | None, queue: str | None) -> None:
    assert (kv_limit(waiting, kv_usage), queueing(waiting)) == (kv, queue)


def test_preemptions_are_a_want_of_cache() -> None:
    assert kv_limit(0, 0.1, preemptions=7) == "KV-limited: 7 preemptions"


# Verdicts as a table: each rule speaking and silent.


GIB = 1024**3
STATIC = GpuStatic(
    index=5,
    vendor="amd",
    name="MI300X",
    hbm_total_bytes=192 * GIB,
    power_cap_default_w=750.0,
    pcie_width_max=16,
    pcie_speed_max_gts=32.0,
    links_total=7,
    compute_partition="SPX",
)
HEALTHY = GpuSample(
    index=5,
    t_s=1.0,
    gfx_percent=97.0,
    gfx_clock_mhz=2085.0,
    temperature_hotspot_c=78.0,
    power_cap_w=750.0,
    pcie_width=16,
    pcie_speed_gts=32.0,
    links_up=7,
    ecc_uncorrectable=0,
)


AT_300_W = {"power_w": 299.0, "power_cap_w": 300.0}


def gpu(static: dict[str, Any] | None = None, now: dict[str, Any] | None = None, **facts: Any) -> GpuFacts:
    fields = {name: getattr(STATIC, name) for name in STATIC.__struct_fields__} | (static or {})
    sample = {name: getattr(HEALTHY, name) for name in HEALTHY.__struct_fields__} | (now or {})
    return GpuFacts(static=GpuStatic(**fields), now=GpuSample(**sample), **facts)


@pytest.mark.parametrize(
    ("facts", "id", "text"),
    [
        (gpu(now={"ecc_uncorrectable": 2}), "ecc-uncorrectable", "2 uncorrectable memory errors"),
        (gpu(now={"ecc_deferred": 2}), "ecc-deferred", "2 deferred memory errors"),
        (gpu(now={"xids": 2, "xid_last": 79}), "xid", "2 Xid errors in this run, the last one Xid 79"),
        (gpu(now={"remap_pending": True}), "row-remap", "a bad row of memory waits for a reset of the GPU"),
        (gpu(now={"remap_failed": True}), "row-remap", "a bad row of memory could not be replaced: replace the GPU"),
        (gpu(now={"bad_pages": 3}), "memory-retired", "3 bad pages of memory out of use"),
        (gpu(now={"rows_remapped": 1}), "memory-retired", "1 row of memory remapped"),
        (gpu(throttled_percent={"power": 3.0, "thermal": 18.2}), "throttled", "THROTTLED thermal 18%"),
        (gpu(throttled_percent={"prochot": 9.0, "hbm": 6.0}), "throttled", "THROTTLED prochot 9%"),
        (gpu(throttled_percent={"power": 90.0, "brake": 3.0}), "power-capped", "at its power limit 90% of the time"),
        (
            gpu(now={"power_w": 692.0}, throttled_percent={"power": 90.0}),
            "power-capped",
            "at its power limit 90% of the time",
        ),
        # NVML's counter of an H200 under part of a load.
        (
            gpu(now={"power_w": 300.0}, throttled_percent={"power": 97.0}),
            "power-capped",
            "at its power limit at most 42% of the time",
        ),
        (gpu(siblings_clock_mhz=2400.0), "straggler", "straggler: clock -13% of its siblings"),
        (
            gpu({"gfx_clock_max_mhz": 2100.0}, {"gfx_clock_mhz": 900.0, "power_w": 300.0}),
            "low-clock",
            "clock 900 of 2100 MHz under load, and no reason given",
        ),
        (
            gpu({"gfx_clock_max_mhz": 2100.0}, {"gfx_clock_mhz": 60.0, "power_w": 150.0}),
            "slow-clock",
            "clock 60 of 2100 MHz, 97% busy",
        ),
        (gpu(now={"gfx_clock_mhz": 60.0}), "slow-clock", "clock 60 of the 2100 MHz of its data sheet, 97% busy"),
        (
            gpu({"hbm_total_bytes": 168 * GIB}),
            "hbm-below-rated",
            "memory 168.0 GiB of the 192.0 GiB of its data sheet",
        ),
        (gpu(siblings_temperature_c=60.0), "hotter-than-siblings", "18 C hotter than its siblings"),
        (gpu(now={"pcie_width": 8}), "pcie-below-maximum", "PCIe x8 of x16"),
        (gpu(now={"pcie_speed_gts": 16.0}), "pcie-below-maximum", "PCIe 16 of 32 GT/s"),
        (gpu(now={"links_up": 6}), "link-down", "1 of 7 links down"),
        (
            gpu({"links_total": 5}, {"links_up": 5}, siblings_links=(7, 7, 5)),
            "link-down",
            "5 links up, its siblings have 7",
        ),
        (gpu({"links_total": None}, siblings_links=(18, 18)), "link-down", "0 links up, its siblings have 18"),
        (
            gpu(before_start=GpuSample(index=5, t_s=0.0, hbm_used_bytes=40 * GIB)),
            "hbm-used-before-start",
            "40.0 GiB in use before the start",
        ),
        (gpu({"compute_partition": "CPX"}), "partitioned", "compute partition CPX, not SPX"),
        (gpu(now={"power_cap_w": 500.0}), "power-cap-changed", "power cap 500 W, by default 750 W"),
    ],
)
def test_a_gpu_that_is_not_well(facts: GpuFacts, id: str, text: str) -> None:
    assert [(verdict.id, verdict.subject, verdict.text) for verdict in gpu_verdicts([facts])] == [(id, "gpu 5", text)]


@pytest.mark.parametrize(
    "facts",
    [
        gpu(),
        gpu(now={"power_w": 20.0}, throttled_percent={"power": 97.0}),  # it cannot have been at 750 W
        GpuFacts(static=GpuStatic(index=0, vendor="nvidia", name="H200"), now=GpuSample(index=0, t_s=0.0)),
        gpu(throttled_percent={"power": 2.0}, siblings_clock_mhz=2100.0, siblings_temperature_c=75.0),
        # Slow because nothing is to be done, and a link that saves power meanwhile.
        gpu(now={"gfx_percent": 3.0, "gfx_clock_mhz": 300.0, "pcie_speed_gts": 2.5}, siblings_clock_mhz=2100.0),
        gpu(before_start=GpuSample(index=5, t_s=0.0, hbm_used_bytes=300 * 1024**2)),
        gpu({"compute_partition": "CPX", "partition": 3}),
        gpu({"vendor": "nvidia", "compute_partition": "1g.10gb"}),
        gpu(now={"xids": 0, "bad_pages": 0, "rows_remapped": 0, "remap_pending": False, "remap_failed": False}),
        gpu({"partition": 3, "links_total": None}, siblings_links=(7, 7)),
        gpu({"gfx_clock_max_mhz": 2100.0}, {"gfx_clock_mhz": 900.0, "gfx_percent": 40.0}),  # idle GPUs save power
        gpu({"gfx_clock_max_mhz": 2100.0}, {"gfx_clock_mhz": 900.0, "power_w": 740.0}),  # held by its power cap
        gpu({"gfx_clock_max_mhz": None}, {"gfx_clock_mhz": 900.0}),
        gpu(now={"gfx_clock_mhz": 60.0, "gfx_percent": 40.0}),
        gpu({"name": "MI999X"}, {"gfx_clock_mhz": 60.0}),  # no data sheet
        # A power cap that was lowered on purpose: it is the reason.
        gpu({"gfx_clock_max_mhz": 2100.0, "power_cap_default_w": 300.0}, {"gfx_clock_mhz": 500.0} | AT_300_W),
        gpu(now={"power_w": 140.0}),  # low power alone is no sign of anything
        gpu({"hbm_total_bytes": 183 * GIB}),  # what drivers and ECC leave
        gpu({"hbm_total_bytes": 96 * GIB, "virtualization": "GUEST"}),
        gpu({"name": "MI999X", "hbm_total_bytes": GIB}),
    ],
)
def test_a_gpu_that_is_well_or_says_nothing(facts: GpuFacts) -> None:
    assert gpu_verdicts([facts]) == []


def test_a_clock_below_a_data_sheet_from_memory_is_information() -> None:
    own, rated = gpu({"gfx_clock_max_mhz": 2100.0}, {"gfx_clock_mhz": 60.0}), gpu(now={"gfx_clock_mhz": 60.0})
    assert [verdict.bad for verdict in gpu_verdicts([own, rated])] == [True, False]
    assert all("clock_mhz" in part.unsure for part in PARTS if part.clock_mhz is not None)


@pytest.mark.parametrize("partition", ["CPX", "1g.10gb"])
def test_a_partition_has_a_share_of_the_memory(partition: str) -> None:
    found = gpu_verdicts([gpu({"compute_partition": partition, "hbm_total_bytes": 24 * GIB})])
    assert "hbm-below-rated" not in {verdict.id for verdict in found}


@pytest.mark.parametrize(
    ("facts", "ids", "words"),
    [
        (StageFacts(), [], ""),
        (StageFacts(rising="TTFT +31%"), ["rising"], "TTFT +31%"),
        (StageFacts(capped="20 streams at most"), ["capped"], "20 streams"),
        (StageFacts(preemptions=7), ["kv-limited"], "7 preemptions"),
        (StageFacts(waiting=3.0, kv_usage=0.4), ["queueing"], "engine-limited: queueing, 3 waiting"),
        (StageFacts(waiting=0.2, kv_usage=1.0), [], ""),
        (StageFacts(gfx_percent=98.0, mfu_percent=52.0), ["compute-bound"], "MFU 52%"),
        (StageFacts(gfx_percent=99.0, mfu_percent=3.6), [], ""),  # active, and hardly computing
        (StageFacts(gfx_percent=98.0, memory_rate_percent=80.0, mfu_percent=50.0), ["bandwidth-bound"], "80% of its"),
        (StageFacts(gfx_percent=98.0, memory_rate_percent=40.0), [], ""),
        (StageFacts(host_percent=95.0, memory_rate_percent=85.0), ["bandwidth-bound"], ""),  # the GPUs wait for nothing
        (StageFacts(host_percent=95.0), ["host-limited"], "95% busy"),
        (StageFacts(steal_percent=4.9), [], ""),
        (StageFacts(steal_percent=12.0, is_loaded=False), [], ""),
        (
            StageFacts(gfx_percent=30.0, busiest_core_percent=99.0),
            ["host-limited"],
            "a core was 99% busy, the GPUs 30%",
        ),
        (StageFacts(gfx_percent=98.0, busiest_core_percent=99.0), [], ""),
    ],
)
def test_what_limited_a_stage(facts: StageFacts, ids: list[str], words: str) -> None:
    """Next to the situations of `tests/report/situations.md`."""
    found = stage_verdicts("stage 3", facts)
    assert [verdict.id for verdict in found] == ids
    assert all(verdict.subject == "stage 3" for verdict in found)
    assert not words or words in found[0].text


def test_siblings_are_the_other_busy_gpus_of_the_same_name() -> None:
    gpus = [GpuStatic(index=index, vendor="amd", name="A" if index < 4 else "B") for index in range(5)]
    now = {
        index: GpuSample(index=index, t_s=0.0, gfx_percent=99.0 if index else 1.0, gfx_clock_mhz=2000.0 + index)
        for index in range(5)
    }
    facts = {entry.static.index: entry for entry in gpu_facts(gpus, now, {}, {2: {"power": 9.0}})}
    assert facts[0].siblings_clock_mhz == 2002.0
    assert facts[1].siblings_clock_mhz == 2002.5
    assert facts[4].siblings_clock_mhz is None
    assert facts[2].throttled_percent == {"power": 9.0}
    assert gpu_facts(gpus, {}, {}, {}) == []


def test_links_are_compared_with_those_of_most_siblings_partitions_apart() -> None:
    gpus = [
        GpuStatic(index=index, vendor="nvidia", name="H100", links_total=16 if index == 2 else 18, socket=f"s{index}")
        for index in range(4)
    ]
    gpus += [GpuStatic(index=4 + n, vendor="nvidia", name="H100", partition=1 + n, socket="s0") for n in range(4)]
    now = {gpu.index: GpuSample(index=gpu.index, t_s=0.0, links_up=gpu.links_total) for gpu in gpus}
    found = gpu_verdicts(gpu_facts(gpus, now, {}, {}))
    assert [(one.subject, one.text) for one in found] == [("gpu 2", "16 links up, its siblings have 18")]
    # A bridge between two of four is how they were bought.
    bridged = [msgspec.structs.replace(gpu, links_total=12 if gpu.index < 2 else None) for gpu in gpus[:4]]
    assert gpu_verdicts(gpu_facts(bridged, {gpu.index: now[gpu.index] for gpu in gpus[2:4]}, {}, {})) == []


def test_the_power_cap_is_information() -> None:
    (found,) = gpu_verdicts([gpu(throttled_percent={"power": 90.0})])
    assert not found.bad and flags([found], 5) == ()


def test_what_is_wrong_with_anothers_gpu_is_information() -> None:
    gpus = [GpuStatic(index=index, vendor="amd", name="A", socket=f"s{index}") for index in range(2)]
    now = {index: GpuSample(index=index, t_s=0.0, ecc_uncorrectable=1) for index in range(2)}
    found = gpu_verdicts(gpu_facts(gpus, now, {}, {}, of_others={1}))
    assert [(one.subject, one.bad) for one in found] == [("gpu 0", True), ("gpu 1", False)]


def test_the_row_of_a_gpu_shows_what_needs_the_operator() -> None:
    found = gpu_verdicts([gpu(now={"pcie_width": 8, "power_cap_w": 500.0})])
    assert flags(found, 5) == ("PCIe x8 of x16",)
    assert flags(found, 4) == ()


def test_a_bad_verdict_is_not_merged_with_one_that_only_explains() -> None:
    """The first GPU is not the server's: what it has is no fault of the run, but the same at the others is."""
    found = [Verdict("throttled", f"gpu {index}", "THROTTLED hbm 18%", bad=index > 0) for index in range(4)]
    assert [(one.subject, one.bad) for one in merged(found)] == [("gpu 0", False), ("gpu 1-3", True)]
