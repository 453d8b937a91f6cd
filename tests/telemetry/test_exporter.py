"""Pages of NVIDIA's and AMD's exporters become the samples that a local GPU has, and nothing untrue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loadgen.errors import TelemetryError
from loadgen.profile.schema import Telemetry
from loadgen.schema.samples import GpuSample
from loadgen.telemetry.backends import backend_options
from loadgen.telemetry.exporter import EXPORTERS, open_exporter, read_page
from loadgen.telemetry.monitor import Monitor, Timing

NOT_SUPPORTED = 9223372036854775794


def dcgm(gpus: int = 8, **values: float) -> str:
    """dcgm-exporter's page with the same values for each GPU, and the energy that `energy` says in mJ."""
    metrics = {
        "DCGM_FI_DEV_SM_CLOCK": 1980,
        "DCGM_FI_DEV_GPU_TEMP": 61,
        "DCGM_FI_DEV_POWER_USAGE": 512.5,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 7_000_000,
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_FB_USED": 71_000,
        "DCGM_FI_DEV_XID_ERRORS": 0,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": NOT_SUPPORTED,
        "DCGM_FI_PROF_DRAM_ACTIVE": 0.41,
    } | values
    lines = []
    for name, value in metrics.items():
        lines.append(f"# TYPE {name} gauge")
        for gpu in range(gpus):
            labels = f'gpu="{gpu}",UUID="GPU-{gpu:04x}",pci_bus_id="00000000:{gpu:02X}:00.0",device="nvidia{gpu}"'
            lines.append(f'{name}{{{labels},modelName="NVIDIA H100 80GB HBM3",Hostname="node1"}} {value}')
    return "\n".join([*lines, ""])


AMD_PAGE = """\
# TYPE gpu_gfx_activity gauge
gpu_gfx_activity{gpu_id="0",serial_number="692",card_model="102-G30211-0C",gpu_partition_id="0",hostname="node2"} 88
# TYPE gpu_package_power gauge
gpu_package_power{gpu_id="0",serial_number="692",card_model="102-G30211-0C",gpu_partition_id="0"} 640
# TYPE gpu_clock gauge
gpu_clock{gpu_id="0",serial_number="692",clock_type="GPU_CLOCK_TYPE_SYSTEM",gpu_partition_id="0"} 2100
gpu_clock{gpu_id="0",serial_number="692",clock_type="GPU_CLOCK_TYPE_MEMORY",gpu_partition_id="0"} 1300
# TYPE gpu_used_vram gauge
gpu_used_vram{gpu_id="0",serial_number="692",gpu_partition_id="0"} 171234
# TYPE gpu_total_vram gauge
gpu_total_vram{gpu_id="0",serial_number="692",gpu_partition_id="0"} 196592
# TYPE gpu_energy_consumed gauge
gpu_energy_consumed{gpu_id="0",serial_number="692",gpu_partition_id="0"} 61200000
# TYPE gpu_xgmi_link_rx gauge
gpu_xgmi_link_rx{gpu_id="0",serial_number="692",link="1",gpu_partition_id="0"} 3
gpu_xgmi_link_rx{gpu_id="0",serial_number="692",link="2",gpu_partition_id="0"} 4
"""


@contextmanager
def served(page: Callable[[], str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()


def samples(*pages: str) -> list[tuple[GpuSample, ...]]:
    """What is sampled from one page after another; the first opens the exporter."""
    coming = iter(pages)
    with served(lambda: next(coming)) as url:
        backend = open_exporter(url)
        found = [backend.sample(False, False) for _ in pages[1:]]
        backend.close()
        return found


def test_dcgm_units_are_ours() -> None:
    [gpus] = samples(dcgm(), dcgm())
    assert len(gpus) == 8
    one = gpus[3]
    assert (one.power_w, one.energy_j, one.hbm_used_bytes) == (512.5, 7000.0, 71_000 << 20)
    assert (one.gfx_percent, one.dram_percent, one.gfx_clock_mhz) == (97, 41.0, 1980)


def test_dcgm_names_its_gpus() -> None:
    with served(dcgm) as url:
        gpu = open_exporter(url).opened.gpus[2]
    assert (gpu.name, gpu.uuid, gpu.bdf) == ("NVIDIA H100 80GB HBM3", "GPU-0002", "00000000:02:00.0")


def test_a_sentinel_is_missing_and_no_xid_is_no_error() -> None:
    [[gpu]] = samples(dcgm(1), dcgm(1))
    assert (gpu.ecc_uncorrectable, gpu.xid_last) == (None, None)
    assert gpu.missing["ecc_uncorrectable"] == "not available"


def test_an_xid_that_comes_meanwhile_is_counted_and_an_earlier_one_is_not() -> None:
    page, other = dcgm(1, DCGM_FI_DEV_XID_ERRORS=13), dcgm(1, DCGM_FI_DEV_XID_ERRORS=79)
    found = [gpus[0] for gpus in samples(page, page, other, other)]
    assert [(gpu.xids, gpu.xid_last) for gpu in found] == [(0, 13), (1, 79), (1, 79)]


def test_amd_units_are_ours_and_links_are_summed() -> None:
    [[one]] = samples(AMD_PAGE, AMD_PAGE)
    assert one.energy_j == pytest.approx(61.2)
    assert (one.power_w, one.gfx_clock_mhz, one.memory_clock_mhz) == (640, 2100, 1300)
    assert (one.hbm_used_bytes, one.link_read_bytes) == (171_234 << 20, 7 * 1024)


@pytest.mark.parametrize(
    ("metric", "value", "field"),
    [
        ("DCGM_FI_DEV_POWER_USAGE", 512_500, "power_w"),
        ("DCGM_FI_DEV_FB_USED", 71_000 << 20, "hbm_used_bytes"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", 41.0, "dram_percent"),
        ("DCGM_FI_DEV_GPU_TEMP", 61_000, "temperature_hotspot_c"),
    ],
)
def test_a_value_in_another_unit_is_missing(metric: str, value: float, field: str) -> None:
    [gpus] = samples(dcgm(), dcgm(8, **{metric: value}))
    assert getattr(gpus[0], field) is None
    assert "cannot be true" in gpus[0].missing[field]


def test_a_lost_gpu_is_listed_without_values_until_it_is_back() -> None:
    lost, back = samples(dcgm(8), dcgm(7), dcgm(8))
    assert (lost[7].power_w, lost[7].missing["power_w"]) == (None, "the exporter no longer lists this GPU")
    assert (lost[6].power_w, back[7].power_w) == (512.5, 512.5)


def test_an_exporter_that_stops_answering_says_so_for_each_gpu() -> None:
    found, back = samples(dcgm(2), "garbage {", dcgm(2))
    assert [gpu.power_w for gpu in found] == [None, None]
    assert "Prometheus" in found[0].missing["power_w"]
    assert back[0].power_w == 512.5


def test_violations_become_shares_of_the_time() -> None:
    before = dcgm(1, DCGM_FI_DEV_POWER_VIOLATION=1_000)
    [[one]] = samples(before, dcgm(1, DCGM_FI_DEV_POWER_VIOLATION=10**18))
    assert one.throttle_percent == {"power": 100.0}
    [[same]] = samples(before, before)
    assert same.throttle_percent == {"power": 0.0}


@pytest.mark.parametrize("page", ["", "up 1\n", "vllm:num_requests_running 1\n", '{"not": "prometheus"}'])
def test_another_page_is_refused(page: str) -> None:
    with served(lambda: page) as url, pytest.raises(TelemetryError):
        open_exporter(url)


def test_a_dead_port_is_refused_with_its_url() -> None:
    with pytest.raises(TelemetryError, match=r"http://127.0.0.1:9/metrics"):
        open_exporter("http://127.0.0.1:9/metrics")


_NAMES = [row.metric for exporter in EXPORTERS for row in exporter.names]


@given(
    st.lists(
        st.tuples(st.sampled_from(_NAMES), st.floats() | st.integers(-(1 << 70), 1 << 70).map(float), st.integers(0, 3))
    )
)
def test_any_values_are_plausible_or_missing(rows: list[tuple[str, float, int]]) -> None:
    page = "\n".join(f'{name}{{gpu="{gpu}",gpu_id="{gpu}"}} {value!r}' for name, value, gpu in rows)
    try:
        _, gpus = read_page(page + "\n")
    except TelemetryError:
        return
    for gpu in gpus.values():
        for value in gpu.values.values():
            assert not isinstance(value, float | int) or 0 <= value < 1 << 64


def test_a_gpu_names_its_host_by_the_label_or_else_by_the_address() -> None:
    with served(dcgm) as one, served(lambda: dcgm().replace(',Hostname="node1"', "")) as two:
        named, unnamed = open_exporter(one), open_exporter(two)
    assert {gpu.host for gpu in named.opened.gpus} == {"node1"}
    assert {gpu.host for gpu in unnamed.opened.gpus} == {"127.0.0.1"}
    # Energy is counted by socket, and these two machines have one address, behind two ports.
    assert len({gpu.socket for gpu in (*named.opened.gpus, *unnamed.opened.gpus)}) == 16


@pytest.mark.parametrize("url", ["http://[::1", "http://a:b/metrics", "ftp://a/metrics", "http:///metrics"])
def test_a_page_without_a_url_is_refused(url: str) -> None:
    with pytest.raises(TelemetryError, match=r"URL|protocol|port"):
        open_exporter(url)
    with pytest.raises(ValidationError, match="expected a URL"):
        Telemetry.model_validate({"exporters": [url]})


async def monitored(folder: Path, *urls: str, timing: Timing | None = None) -> Monitor:
    """A monitor of these pages through the real children, until each GPU was sampled."""
    options = backend_options("auto", exporters=urls)
    monitor = Monitor(options, folder=folder, interval_s=0.05, timing=timing or Timing())
    monitor.start()
    try:
        async with asyncio.timeout(30):
            while not monitor.settled or len(monitor.latest) < 8 * len(urls):
                await monitor.change()
    finally:
        await monitor.close()
    return monitor


def test_several_exporters_are_one_list_of_gpus(tmp_path: Path) -> None:
    with served(dcgm) as one, served(dcgm) as two:
        monitor = asyncio.run(monitored(tmp_path, one, two))
    assert [gpu.index for gpu in monitor.gpus] == list(range(16))
    assert {sample.power_w for sample in monitor.latest.values()} == {512.5}
    assert len({status.vendor for status in monitor.status}) == 2


def test_numbers_go_by_the_order_given_not_by_which_answers_first(tmp_path: Path) -> None:
    answered, second_is_sampled = iter(range(1000)), threading.Event()

    def first() -> str:
        second_is_sampled.wait(1.0)
        return dcgm()

    def second() -> str:
        if next(answered):  # once to open it
            second_is_sampled.set()
        return dcgm().replace("node1", "node2")

    with served(first) as one, served(second) as two:
        monitor = asyncio.run(monitored(tmp_path, one, two))
    assert [gpu.host for gpu in monitor.gpus] == ["node1"] * 8 + ["node2"] * 8
    assert [gpu.index for gpu in monitor.gpus] == list(range(16))


def test_an_exporter_that_is_dead_at_the_start_joins_whenever_it_answers(tmp_path: Path) -> None:
    pages = iter([""] * 4)
    timing = Timing(again_s=(0.01,))  # for another source, two rounds
    with served(lambda: next(pages, dcgm().replace("node1", "late"))) as late, served(dcgm) as there:
        monitor = asyncio.run(monitored(tmp_path, late, there, timing=timing))
    assert [gpu.host for gpu in monitor.gpus] == ["node1"] * 8 + ["late"] * 8
    assert all(status.works for status in monitor.status)


def test_exporters_stand_in_for_this_box_unless_a_backend_is_named() -> None:
    page = "http://node1:9400/metrics"
    assert list(backend_options("auto", exporters=[page])) == ["node1-9400"]
    assert list(backend_options("sim", exporters=[page])) == ["sim", "node1-9400"]


def test_the_name_of_an_exporter_holds_no_secret_and_is_its_own() -> None:
    pages = [f"http://ann:pass@prom:9090/federate?token={token}" for token in ("first", "second")]
    assert list(backend_options("auto", exporters=[*pages, *pages])) == ["prom-9090-federate", "prom-9090-federate-1"]
