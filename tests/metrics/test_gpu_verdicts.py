"""Verdicts as a table: each rule speaking and silent."""

from typing import Any

import pytest

from loadgen.metrics.samples import GpuSample, GpuStatic
from loadgen.metrics.verdicts import GpuFacts, StageFacts, flags, gpu_facts, gpu_verdicts, stage_verdicts

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


def gpu(static: dict[str, Any] | None = None, now: dict[str, Any] | None = None, **facts: Any) -> GpuFacts:
    fields = {name: getattr(STATIC, name) for name in STATIC.__struct_fields__} | (static or {})
    sample = {name: getattr(HEALTHY, name) for name in HEALTHY.__struct_fields__} | (now or {})
    return GpuFacts(static=GpuStatic(**fields), now=GpuSample(**sample), **facts)


@pytest.mark.parametrize(
    ("facts", "id", "text"),
    [
        (gpu(now={"ecc_uncorrectable": 2}), "ecc-uncorrectable", "2 uncorrectable memory errors"),
        (gpu(throttled_percent={"power": 18.2, "thermal": 3.0}), "throttled", "THROTTLED power 18%"),
        (gpu(siblings_clock_mhz=2400.0), "straggler", "straggler: clock -13% of its siblings"),
        (gpu(siblings_temperature_c=60.0), "hotter-than-siblings", "18 C hotter than its siblings"),
        (gpu(now={"pcie_width": 8}), "pcie-below-maximum", "PCIe x8 of x16"),
        (gpu(now={"pcie_speed_gts": 16.0}), "pcie-below-maximum", "PCIe 16 of 32 GT/s"),
        (gpu(now={"links_up": 6}), "link-down", "1 of 7 links down"),
        (
            gpu(first=GpuSample(index=5, t_s=0.0, hbm_used_bytes=40 * GIB)),
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
        GpuFacts(static=GpuStatic(index=0, vendor="nvidia", name="H200"), now=GpuSample(index=0, t_s=0.0)),
        gpu(throttled_percent={"power": 2.0}, siblings_clock_mhz=2100.0, siblings_temperature_c=75.0),
        # Slow because nothing is to be done, and a link that saves power meanwhile.
        gpu(now={"gfx_percent": 3.0, "gfx_clock_mhz": 300.0, "pcie_speed_gts": 2.5}, siblings_clock_mhz=2100.0),
        gpu(first=GpuSample(index=5, t_s=0.0, hbm_used_bytes=300 * 1024**2)),
        gpu({"compute_partition": "CPX", "partition": 3}),
        gpu({"vendor": "nvidia", "compute_partition": "1g.10gb"}),
    ],
)
def test_a_gpu_that_is_well_or_says_nothing(facts: GpuFacts) -> None:
    assert gpu_verdicts([facts]) == []


@pytest.mark.parametrize(
    ("facts", "ids", "words"),
    [
        (StageFacts(), [], ""),
        (StageFacts(client_limit="read lag p99 60.0 ms"), ["client-limited"], "read lag"),
        (StageFacts(capped="20 streams at most"), ["capped"], "20 streams"),
        (StageFacts(preemptions=7), ["kv-limited"], "7 preemptions"),
        (StageFacts(waiting=3.0, kv_usage=0.97), ["kv-limited", "queueing"], "3 waiting, KV cache 97% full"),
        (StageFacts(waiting=3.0, kv_usage=0.4), ["queueing"], "engine-limited: queueing, 3 waiting"),
        (StageFacts(waiting=0.2, kv_usage=1.0), [], ""),
        (StageFacts(gfx_percent=98.0, memory_percent=40.0), ["compute-bound"], "GPUs 98% busy"),
        (StageFacts(gfx_percent=98.0, memory_percent=80.0), ["bandwidth-bound"], "80% busy"),
        (StageFacts(gfx_percent=98.0), [], ""),
        (StageFacts(host_percent=95.0), ["host-limited"], "95% busy"),
        (
            StageFacts(gfx_percent=30.0, busiest_core_percent=99.0),
            ["host-limited"],
            "a core was 99% busy, the GPUs 30%",
        ),
        (StageFacts(gfx_percent=98.0, busiest_core_percent=99.0), [], ""),
    ],
)
def test_what_limited_a_stage(facts: StageFacts, ids: list[str], words: str) -> None:
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


def test_the_row_of_a_gpu_shows_what_needs_the_operator() -> None:
    found = gpu_verdicts([gpu(now={"pcie_width": 8, "power_cap_w": 500.0})])
    assert flags(found, 5) == ("PCIe x8 of x16",)
    assert flags(found, 4) == ()
