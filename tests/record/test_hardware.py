"""The hardware's part of a record, folded from lines of a journal."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics.energy import sockets, window_energy
from loadgen.metrics.frontier import Price
from loadgen.metrics.verdicts import error_verdicts, gpu_verdicts
from loadgen.record.hardware import (
    HardwareRecord,
    HardwareSamples,
    full_host_share,
    gpu_stages,
    host_means,
    mean_throttle,
)
from loadgen.record.record import Record
from loadgen.schema.deltas import ClientDelta, StageDelta
from loadgen.schema.journal import (
    GpusSampled,
    HostSampled,
    RunStarted,
    ServerChanged,
    StageEnded,
    StageStarted,
    TelemetryChanged,
    Ticked,
)
from loadgen.schema.samples import GpuPace, GpuProcess, GpuSample, GpuStatic, HostSample, ServerDevices
from tests.journal import STARTED

GIB = 1024**3
GPUS = tuple(GpuStatic(index=n, vendor="sim", name="GPU", socket=f"s{n}", hbm_total_bytes=192 * GIB) for n in range(2))


def sampled(t_s: float, *hbm_gib: float, **fields: Any) -> GpusSampled:
    samples = (GpuSample(index=n, t_s=t_s, hbm_used_bytes=int(used * GIB), **fields) for n, used in enumerate(hbm_gib))
    return GpusSampled(t_s=t_s, gpus=tuple(samples))


def host(t_s: float, cpu_percent: float | None) -> HostSampled:
    sample = HostSample(
        t_s=t_s, cores=2, memory_used_bytes=1, memory_total_bytes=2, load_1min=0.5, cpu_percent=cpu_percent
    )
    return HostSampled(t_s=t_s, host=sample)


def test_what_the_slow_tier_read_stays_known() -> None:
    record = HardwareRecord()
    record.sampled(GpusSampled(0.0, (GpuSample(index=0, t_s=0.0, links_up=7, power_w=100.0),)))
    record.sampled(GpusSampled(1.0, (GpuSample(index=0, t_s=1.0, missing={"power_w": "busy"}),)))
    assert (record.latest[0].links_up, record.latest[0].power_w) == (7, None)


def test_server_gpus_without_a_choice_hold_a_model() -> None:
    record = HardwareRecord()
    record.gpus = GPUS
    record.sampled(sampled(0.0, 0.3, 0.3))
    assert record.now() == ServerDevices((0, 1), "all")
    samples = record.begin_stage()
    record.sampled(sampled(1.0, 0.4, 9.0))
    assert record.of_stage(samples) == record.now() == ServerDevices((1,), "hbm")
    # An attached server held its model before the run began.
    attached = HardwareRecord()
    attached.gpus = GPUS
    attached.sampled(sampled(1.0, 170.0, 0.3))
    assert attached.now() == ServerDevices((0,), "hbm")


@pytest.mark.parametrize(("engine", "said"), [("vllm", ["40.0 GiB in use before the start"]), ("attach", [])])
def test_memory_in_use_is_foreign_only_before_a_start_of_our_own(engine: str, said: list[str]) -> None:
    record = Record()
    record.apply(STARTED)
    record.apply(TelemetryChanged(0.0, GPUS, {}))
    record.apply(sampled(0.5, 40.0, 0.3))
    record.apply(ServerChanged(1.0, "starting", engine, ""))
    record.apply(sampled(9.0, 170.0, 170.0))
    record.apply(ServerChanged(20.0, "starting", engine, ""))  # the operator restarts it: its own memory is not foreign
    assert [one.text for one in gpu_verdicts(record.hardware.facts())] == said


def test_memory_that_was_first_seen_after_the_start_is_not_foreign() -> None:
    record = Record()
    record.apply(STARTED)
    record.apply(TelemetryChanged(0.0, GPUS, {}))
    record.apply(ServerChanged(1.0, "starting", "vllm", ""))
    record.apply(sampled(9.0, 170.0, 170.0))
    record.apply(ServerChanged(9.0, "ready", "vllm", ""))
    assert gpu_verdicts(record.hardware.facts()) == []


def test_a_choice_holds_for_the_stage_in_which_it_was_known() -> None:
    record = HardwareRecord()
    record.gpus = GPUS
    first = record.begin_stage()
    record.sampled(sampled(0.0, 170.0, 0.3))
    record.choose(ServerDevices((1,), "given"))
    first.until_s = 0.5
    record.sampled(sampled(1.0, 170.0, 0.3))
    assert record.of_others(record.now()) == {0} and not record.of_others(ServerDevices((1,), "hbm"))
    record.choose(ServerDevices((0,), "given"))  # another variant of the server
    second = record.begin_stage()
    assert record.of_stage(first) == ServerDevices((1,), "given")
    assert record.of_stage(second) == record.now() == ServerDevices((0,), "given")


def test_a_partition_stands_for_its_socket_which_counts_once() -> None:
    record = HardwareRecord()
    record.gpus = tuple(GpuStatic(index=n, vendor="amd", name="MI300X", socket="s", partition=n) for n in range(8))
    assert record.sockets_of(ServerDevices((3, 5), "given")) == list(record.gpus)
    assert sockets(record.sockets_of(ServerDevices((3, 5), "given"))) == [record.gpus[0]]


def test_a_list_of_processes_does_not_outlive_those_who_wanted_it() -> None:
    record = HardwareRecord()
    listed = (GpuProcess(7, "python3", 5),)
    record.sampled(GpusSampled(0.0, (GpuSample(index=0, t_s=0.0, processes=listed),)))
    record.sampled(GpusSampled(9.0, (GpuSample(index=0, t_s=9.0),)))
    assert record.latest[0].processes == listed
    record.sampled(GpusSampled(30.0, (GpuSample(index=0, t_s=30.0),)))
    assert record.latest[0].processes is None


def test_counters_are_reported_as_what_they_gain() -> None:
    record = HardwareRecord()
    for t_s, energy_j, read_bytes in ((0.0, 5e6, 7), (1.0, 5e6 + 600, 3_000_007), (3.0, 100.0, 9_000_007)):
        sample = GpuSample(index=0, t_s=t_s, energy_j=energy_j, link_read_bytes=read_bytes)
        record.sampled(GpusSampled(t_s, (sample,)))
    assert record.pace(0) == GpuPace(link_read_bytes_per_s=3e6, energy_j=600.0)  # the driver was reloaded
    record.sampled(GpusSampled(4.0, (GpuSample(index=0, t_s=4.0, energy_j=350.0, link_read_bytes=5),)))
    assert record.pace(0) == GpuPace(energy_j=850.0)
    assert record.pace(7) == GpuPace()


def test_xid_errors_are_remembered_when_their_count_begins_anew() -> None:
    record = HardwareRecord()
    for second, count in enumerate([0, 2, 0, 0, 1]):
        last = 79 if count == 2 else None
        record.sampled(GpusSampled(float(second), (GpuSample(index=0, t_s=float(second), xids=count, xid_last=last),)))
    assert (record.latest[0].xids, record.latest[0].xid_last) == (3, 79)


def test_series_are_on_the_runs_time_axis_and_bounded() -> None:
    record = HardwareRecord()
    record.began_s = 1000.0
    for second in range(6_000):
        power_w = {100: 900.0, 101: 20.0}.get(second, 500.0)
        record.sampled(sampled(1000.0 + second, 1.0, power_w=power_w, throttle_percent={"power": 3.0, "hbm": 1.0}))
        record.host_sampled(host(1000.0 + second, 10.0))
    (series,) = record.series()
    times = series.columns["t_s"]
    assert (times[0], times[-1]) == (0, 5_999)
    assert {len(column) for column in series.columns.values()} == {len(times)}
    assert len(record.host_series()["t_s"]) <= 3_000 >= len(times)
    assert series.columns["throttled_percent"][:2] == [3, 3]
    assert max(value or 0 for value in series.columns["power_w"]) == 900
    assert min(value or 0 for value in series.columns["power_w_min"]) == 20
    assert "throttled_percent_min" not in series.columns


def test_a_host_that_was_not_looked_at_has_no_series() -> None:
    assert HardwareRecord().host_series() == {}


@pytest.fixture
def record() -> Record:
    """A stage of twenty seconds, of which the middle ten are measured, on two GPUs of which one works."""
    record = Record()
    started = RunStarted(0.0, "r", "0", {}, {}, 1, 1, 1, monotonic_s=100.0)
    record.apply(started)
    record.apply(TelemetryChanged(0.0, GPUS, {"sim": {"attempt": "sim"}}))
    record.apply(sampled(100.0, 0.3, 0.3, energy_j=0.0, power_w=0.0))
    record.apply(StageStarted(t_s=1.0, index=0, concurrency=8, rate=None, isl=16, osl=16, duration_s=20.0))
    for second in range(1, 21):
        record.apply(sampled(100.0 + second, 100.0, 0.3, energy_j=300.0 * second, power_w=300.0, gfx_percent=95.0))
        record.apply(host(100.0 + second, 50.0))
    delta = StageDelta(completed=10, window_output_tokens=6000, window_start_ns=105 * 10**9, window_end_ns=115 * 10**9)
    record.apply(Ticked(t_s=20.0, span_s=0.25, stages={0: delta}, client=ClientDelta(), held=0))
    record.apply(StageEnded(20.5, 0, "done"))
    record.apply(sampled(121.0, 100.0, 0.3, energy_j=300.0 * 21, power_w=300.0))
    record.apply(sampled(122.0, 100.0, 0.3, energy_j=999_999.0, power_w=300.0))
    return record


def test_a_stage_has_its_gpus_and_the_energy_of_the_servers(record: Record) -> None:
    result = record.result()
    (stage,) = result.stages
    assert [gpu.index for gpu in stage.gpu] == [0, 1]
    assert stage.gpu[0].gfx_percent is not None and stage.gpu[0].gfx_percent.mean == 95.0
    assert stage.energy is not None
    assert [socket.index for socket in stage.energy.sockets] == [0]
    assert stage.energy.joules == pytest.approx(3000.0)
    assert (stage.energy.joules_per_output_token, stage.energy.tokens_per_s_per_w) == (0.5, 2.0)
    assert (stage.energy.source, stage.energy.distrusted, stage.energy.devices_by) == ("counter", False, "hbm")
    assert [gpu.of_server for gpu in stage.gpu] == [True, False]
    assert stage.throughput.output_tokens_per_s_per_gpu == stage.throughput.output_tokens_per_s == 600.0
    assert stage.host["cpu_percent"] == 50.0
    assert result.telemetry_meta == {"sim": {"attempt": "sim"}}
    assert [series.index for series in result.gpu_series] == [0, 1]
    assert result.host_series["t_s"][0] == 1.0


@pytest.mark.parametrize(("gpus", "counted"), [(None, 1), (4, 4)])
def test_its_tokens_cost_what_the_servers_gpus_cost(record: Record, gpus: int | None, counted: int) -> None:
    """600 tokens a second: on one GPU at 3.60 dollars an hour, a tenth of a cent buys 600."""
    record.price = Price(gpu_hour=3.6, gpus=gpus)
    (stage,) = record.result().stages
    assert stage.throughput.output_tokens_per_s_per_gpu == 600.0 / counted
    assert stage.cost is not None
    assert stage.cost.usd_per_million_output_tokens == pytest.approx(counted * 1e6 / 600 * 0.001)


def test_a_stage_takes_one_look_after_its_end_and_no_more(record: Record) -> None:
    assert record.stages[0].hardware_samples.by_gpu[0][-1].t_s == 121.0


# What the looks at GPUs say about a stage.


GPU = GpuStatic(index=0, vendor="sim", name="GPU", hbm_total_bytes=100)


def look(t_s: float, **fields: object) -> GpuSample:
    return GpuSample(index=0, t_s=t_s, **fields)  # type: ignore[arg-type]


def test_figures_gains_and_reasons() -> None:
    looks = [
        look(
            float(second),
            power_w=100.0 * second,
            hbm_used_bytes=10 * second,
            pcie_replays=5 + second,
            link_read_bytes=1000 * second,
            throttle_percent={"power": 10.0 * second, "thermal": 0.0},
            missing={"memory_percent": "NOT_SUPPORTED", "power_w": "once"},
        )
        for second in range(1, 6)
    ]
    (stage,) = gpu_stages([GPU], {0: looks}, {0: looks}, (0,))
    assert stage.power_w is not None
    assert (stage.power_w.min, stage.power_w.mean, stage.power_w.p50, stage.power_w.max) == (100, 300, 300, 500)
    assert (stage.looks, stage.hbm_used_bytes_max, stage.hbm_total_bytes) == (5, 50, 100)
    assert (stage.pcie_replays, stage.link_read_bytes_per_s, stage.link_write_bytes_per_s) == (4, 1000.0, None)
    assert stage.throttled_percent == {"power": 30.0}
    assert (stage.gfx_percent, stage.missing) == (None, {"memory_percent": "NOT_SUPPORTED"})


def test_a_counter_that_was_reset_gains_nothing_that_is_known() -> None:
    looks = [look(0.0, pcie_replays=9), look(1.0, pcie_replays=2), look(2.0, pcie_replays=3)]
    (stage,) = gpu_stages([GPU], {0: looks}, {0: looks}, ())
    assert stage.pcie_replays is None


def test_errors_are_counted_between_samples_around_the_stage() -> None:
    around = [
        look(0.0, ecc_uncorrectable=3, bad_pages=1, xids=0),
        look(1.0),
        look(9.0, ecc_uncorrectable=4, bad_pages=3, xids=2, xid_last=79),
    ]
    (stage,) = gpu_stages([GPU], {0: around[1:2]}, {0: around}, ())
    assert (stage.ecc_uncorrectable, stage.bad_pages, stage.xids, stage.xid_last) == (1, 2, 2, 79)
    assert stage.ecc_deferred is None
    assert not any(one.bad for one in error_verdicts("stage 1", [stage], 8.0, of_others={0}))
    assert [(one.id, one.text) for one in error_verdicts("stage 1", [stage], 8.0)] == [
        ("xid", "gpu 0: 2 Xid errors, the last one Xid 79"),
        ("ecc-uncorrectable", "gpu 0: 1 new uncorrectable memory error"),
        ("memory-retired", "gpu 0: 2 new bad pages"),
    ]


def test_new_correctable_errors_are_information_with_a_rate() -> None:
    around = [look(0.0, ecc_correctable=7), look(60.0), look(120.0, ecc_correctable=19)]
    (stage,) = gpu_stages([GPU], {0: around}, {0: around}, ())
    (short,), (long,) = (error_verdicts("stage 1", [stage], span_s) for span_s in (60.0, 120.0))
    assert (short.id, short.bad, short.text) == ("ecc-correctable", False, "gpu 0: 12 new correctable memory errors")
    assert long.text == "gpu 0: 12 new correctable memory errors, about 360 an hour"
    quiet = [look(0.0, ecc_correctable=7), look(120.0, ecc_correctable=7)]
    (stage,) = gpu_stages([GPU], {0: quiet}, {0: quiet}, ())
    assert error_verdicts("stage 1", [stage], 120.0) == []


def test_a_gpu_without_a_look_is_left_out() -> None:
    assert gpu_stages([GPU], {}, {}, ()) == gpu_stages([GPU], {0: []}, {}, ()) == []


def test_reasons_that_never_held_back_are_left_out() -> None:
    assert mean_throttle([look(0.0), look(1.0, throttle_percent={"power": 0.0})]) == {}
    assert mean_throttle([look(0.0, throttle_percent={}), look(1.0, throttle_percent={"hbm": 50.0})]) == {"hbm": 25.0}


def test_the_hosts_figures_are_means_over_the_window() -> None:
    looks = [
        HostSample(float(second), 2, 10 * second, 99, 0.5, percent) for second, percent in enumerate([None, 10, 30])
    ]
    means = host_means(looks, 0.0, 1.5)
    assert (means["cpu_percent"], means["memory_used_bytes"], means["server_rss_bytes"]) == (10.0, 5.0, None)
    assert set(host_means([], 0.0, 1.0).values()) == {None}


def test_the_host_is_full_for_a_share_of_the_window() -> None:
    percents = [99.0, None, 95.0, 80.0, 10.0, 10.0, 99.0]

    def share(cores: int, end_s: float) -> float | None:
        looks = [HostSample(float(second), cores, 0, 99, 0.5, percent) for second, percent in enumerate(percents)]
        return full_host_share(looks, 0.0, end_s)

    assert share(2, 5.0) == 0.5  # no half a core is idle at 80 %
    assert share(16, 5.0) == 0.25
    assert share(1, 2.0) == 1.0
    assert share(2, 0.5) is share(2, 1.0) is None  # what the first sample covers is not of the window


def test_looks_that_are_forgotten_do_not_come_back() -> None:
    looks = HardwareSamples({0: look(0.0), 1: look(0.0)})
    looks.until_s = 1.0
    looks.forget()
    looks.add([look(2.0)])
    assert looks.complete


def test_looks_reach_one_beyond_each_end() -> None:
    looks = HardwareSamples({0: look(0.0)})
    looks.add([look(1.0)])
    complete = [looks.complete]
    looks.until_s = 1.5
    complete.append(looks.complete)
    looks.add([look(2.0)])
    complete.append(looks.complete)
    assert complete == [False, False, True]
    assert [sample.t_s for sample in looks.within(0.5, 1.5)[0]] == [1.0]
    assert [sample.t_s for sample in looks.by_gpu[0]] == [0.0, 1.0, 2.0]


@given(st.integers(2, 5000))
def test_a_long_stage_is_thinned_evenly_and_keeps_its_ends(seconds: int) -> None:
    looks = HardwareSamples({})
    for second in range(seconds):
        looks.add([look(float(second))])
    times = [sample.t_s for sample in looks.by_gpu[0]]
    assert (times[0], times[-1], len(times) <= 1000) == (0.0, seconds - 1.0, True)
    *gaps, last = itertools.pairwise(times)
    steps = {after - before for before, after in gaps}
    assert len(steps) <= 1
    assert 0 < last[1] - last[0] <= max(steps, default=1.0)
    assert looks.count == seconds


def test_all_hours_of_a_stage_count_alike() -> None:
    """Busy but for the last tenth, with the power as the only source of its energy, and errors that are read rarely."""
    record = HardwareRecord()
    record.gpus = GPUS[:1]
    samples = record.begin_stage()
    seconds = 5 * 3600
    for second in range(seconds + 1):
        slow = {"ecc_uncorrectable": 0 if second < 7_000 else 3} if second % 10 == 3 else {}
        watts = 700.0 if second < 0.9 * seconds else 150.0
        record.sampled(sampled(float(second), 100.0, power_w=watts, **slow))
    (stage,) = gpu_stages(record.gpus, samples.by_gpu, samples.by_gpu, (0,))
    assert stage.power_w is not None and stage.power_w.mean == pytest.approx(645, rel=0.01)
    assert stage.ecc_uncorrectable == 3
    energy = window_energy(record.gpus, samples.by_gpu, 0.0, float(seconds))
    assert energy is not None and energy.joules == pytest.approx(645 * seconds, rel=0.01)


@pytest.mark.parametrize("seconds", [1000, 1001])
def test_only_what_is_too_much_is_thinned(seconds: int) -> None:
    looks = HardwareSamples({})
    for second in range(seconds):
        looks.add([look(float(second))])
    assert len(looks.by_gpu[0]) == (1000 if seconds == 1000 else 501)


def test_what_was_wrong_with_a_gpu_under_load_is_reported_when_it_idles_again() -> None:
    record = Record()
    record.apply(RunStarted(0.0, "r", "0", {}, {}, 1, 1, 1))
    gpus = tuple(GpuStatic(index=n, vendor="sim", name="GPU", socket=f"s{n}") for n in range(4))
    record.apply(TelemetryChanged(0.0, gpus, {"sim": {"attempt": "sim"}}))

    def look_at_all(t_s: float, *, busy: bool) -> None:
        samples = [
            GpuSample(
                index=n,
                t_s=t_s,
                gfx_percent=95.0 if busy else 0.0,
                gfx_clock_mhz=(1200.0 if n == 2 else 2000.0) if busy else 100.0,
                temperature_hotspot_c=(95.0 if n == 2 else 70.0) if busy else 40.0,
                throttle_percent={"thermal": 35.0} if busy and n == 2 else {},
            )
            for n in range(4)
        ]
        record.apply(GpusSampled(t_s, tuple(samples)))

    record.apply(StageStarted(t_s=1.0, index=0, concurrency=8, rate=None, isl=16, osl=16, duration_s=20.0))
    for second in range(2, 21):
        look_at_all(float(second), busy=True)
    delta = StageDelta(completed=10, window_output_tokens=60, window_start_ns=5 * 10**9, window_end_ns=20 * 10**9)
    record.apply(Ticked(t_s=20.0, span_s=0.25, stages={0: delta}, client=ClientDelta(), held=0))
    record.apply(StageEnded(20.5, 0, "done"))
    expected = ["throttled", "straggler", "hotter-than-siblings"]
    for second in range(21, 41):
        look_at_all(float(second), busy=False)
    assert [one.id for one in record.result().verdicts] == expected
    # Its samples are summarised a minute after the next stage has begun.
    record.apply(StageStarted(t_s=41.0, index=1, concurrency=8, rate=None, isl=16, osl=16, duration_s=20.0))
    record.apply(StageStarted(t_s=62.0, index=2, concurrency=8, rate=None, isl=16, osl=16, duration_s=20.0))
    record.apply(Ticked(t_s=120.0, span_s=0.25, stages={}, client=ClientDelta(), held=0))
    assert record.stages[0].hardware_figures is not None
    assert [(one.id, one.subject) for one in record.result().verdicts] == [(id, "gpu 2") for id in expected]
