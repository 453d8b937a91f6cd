"""Simulated GPUs that carry the simulator's load: for demos, tests and screenshots on a machine without GPUs.

They read the simulator's /metrics and behave like a box of MI300X: memory fills once a server is up, power follows the
load with a lag, temperature follows power, clocks droop. Invariants: `step` is pure, so the same load gives the same
GPUs; splitting a time span changes neither power nor energy.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import httpx
import msgspec

from loadgen.schema.samples import GpuProcess, GpuSample, GpuStatic, gained
from loadgen.telemetry.protocol import Backend, Opened

HBM_BYTES = 192 * 1024**3
IDLE_W = 140.0
CAP_W = 750.0
CLOCK_MAX_MHZ = 2100.0
_CLOCK_IDLE_MHZ = 132.0
_MEMORY_CLOCK_MHZ = 1300.0
_HBM_IDLE_BYTES = 300e6
_HBM_FILL_BYTES_PER_S = 25e9
_POWER_LAG_S = 2.0
_HEAT_LAG_S = 12.0
_LINKS = 7
_LINK_BYTES_PER_TOKEN = 2e6  # hidden states of all layers, by tensor parallelism
_PCIE_BYTES_PER_TOKEN = 4e3
_NO_PID = 1 << 22  # a pid that no kernel assigns
_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True)
class SimLoad:
    serving: bool = False
    running: float = 0.0
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SimState:
    hbm_bytes: float = _HBM_IDLE_BYTES
    power_w: float = IDLE_W
    temperature_c: float = 45.0
    energy_j: float = 0.0
    link_bytes: float = 0.0  # received over all links, and as many sent


def step(index: int, state: SimState, load: SimLoad, dt_s: float) -> SimState:
    aim_w = min(demand_w(index, load), CAP_W)
    kept = math.exp(-dt_s / _POWER_LAG_S)
    power_w = aim_w + (state.power_w - aim_w) * kept
    energy_j = state.energy_j + aim_w * dt_s + (state.power_w - aim_w) * _POWER_LAG_S * (1 - kept)
    heat_c = 38.0 + 0.05 * power_w
    temperature_c = heat_c + (state.temperature_c - heat_c) * math.exp(-dt_s / _HEAT_LAG_S)
    full_bytes = min(HBM_BYTES * 0.9, state.hbm_bytes + _HBM_FILL_BYTES_PER_S * dt_s)
    link_bytes = state.link_bytes + _LINK_BYTES_PER_TOKEN * load.output_tokens_per_s * dt_s
    return SimState(full_bytes if load.serving else _HBM_IDLE_BYTES, power_w, temperature_c, energy_j, link_bytes)


def demand_w(index: int, load: SimLoad) -> float:
    """The power that it would draw under this load without a cap."""
    work = 1 - math.exp(-(load.prompt_tokens_per_s / 8000 + load.output_tokens_per_s / 2500))
    # Each GPU differs slightly: within 1 %.
    appetite = 1 + (index * 7 % 5 - 2) * 0.005
    return IDLE_W + (CAP_W - IDLE_W) * busy(load) * (0.3 + 0.65 * work) * appetite


def busy(load: SimLoad) -> float:
    """The share of time in which something runs, 0 to 1."""
    return 1 - math.exp(-2 * load.running)


def observed(index: int, state: SimState, load: SimLoad, t_s: float) -> GpuSample:
    wanted_w = demand_w(index, load)
    held = math.sqrt(min(1.0, CAP_W / wanted_w))
    droop = 1 - 0.18 * (state.power_w / CAP_W) ** 2
    full_mhz = CLOCK_MAX_MHZ * droop * held
    power = max(0.0, wanted_w - CAP_W) / (wanted_w - IDLE_W) if wanted_w > IDLE_W else 0.0
    return GpuSample(
        index=index,
        t_s=t_s,
        gfx_percent=round(99 * busy(load), 1),
        memory_percent=round(90 * (1 - math.exp(-load.running / 24)), 1),
        hbm_used_bytes=int(state.hbm_bytes),
        power_w=round(state.power_w, 1),
        power_cap_w=CAP_W,
        temperature_hotspot_c=round(state.temperature_c, 1),
        temperature_memory_c=round(state.temperature_c - 4, 1),
        gfx_clock_mhz=round(_CLOCK_IDLE_MHZ + (full_mhz - _CLOCK_IDLE_MHZ) * busy(load)),
        memory_clock_mhz=_MEMORY_CLOCK_MHZ,
        energy_j=state.energy_j,
        throttle_percent={"power": round(100 * power, 1), "thermal": 0.0},
        pcie_width=16,
        pcie_speed_gts=32.0,
        sm_percent=round(92 * busy(load), 1),
        dram_percent=round(70 * (1 - math.exp(-load.running / 24)), 1),
        pcie_replays=0,
        pcie_bytes_per_s=_PCIE_BYTES_PER_TOKEN * (load.prompt_tokens_per_s + load.output_tokens_per_s),
        link_read_bytes=int(state.link_bytes),
        link_write_bytes=int(state.link_bytes),
        links_up=_LINKS,
        ecc_correctable=0,
        ecc_uncorrectable=0,
        ecc_deferred=0,
        bad_pages=0,
        xids=0,
    )


def _processes(index: int, state: SimState) -> tuple[GpuProcess, ...]:
    """A worker process of the server."""
    command = f"VLLM::Worker_TP{index}"
    held = int(state.hbm_bytes - _HBM_IDLE_BYTES)
    return (GpuProcess(_NO_PID + index, command, held, user="simulated", command=command, of_server=True),)


def load_between(before: tuple[float, str | None], after: tuple[float, str | None]) -> SimLoad:
    """The load between two readings of /metrics, each a time and its text (None if there is no server)."""
    (before_s, earlier), (after_s, text) = before, after
    if text is None:
        return SimLoad()
    now, then = _values(text), _values(earlier or text)
    rates = []
    for name in ("prompt_tokens_total", "generation_tokens_total"):
        gain = gained(then.get(name, 0.0), now.get(name, 0.0))
        rates.append((gain or 0.0) / (after_s - before_s) if after_s > before_s else 0.0)
    # A simulator that hangs without a kernel says so, because requests alone look like work.
    running = 0.0 if now.get("simulated_gpus_idle") else now.get("num_requests_running", 0.0)
    return SimLoad(True, running, *rates)


def open_sim(*, url: str | None = None, gpus: int = 8) -> Backend:
    """Simulated GPUs; idle without the `url` of a simulator, or while it does not answer."""
    client = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)
    opened = Opened(backend="sim", meta={"url": url}, gpus=tuple(map(_static, range(gpus))))
    states = [SimState() for _ in range(gpus)]
    last: tuple[float, str | None] = (time.monotonic(), _metrics(client, url))

    def sample(_slow: bool, processes: bool) -> tuple[GpuSample, ...]:
        nonlocal last
        before, last = last, (time.monotonic(), _metrics(client, url))
        load = load_between(before, last)
        states[:] = [step(index, state, load, last[0] - before[0]) for index, state in enumerate(states)]
        samples = [observed(index, state, load, last[0]) for index, state in enumerate(states)]
        if processes:
            samples = [
                msgspec.structs.replace(now, processes=_processes(now.index, state) if load.serving else ())
                for now, state in zip(samples, states, strict=True)
            ]
        return tuple(samples)

    return Backend(opened=opened, sample=sample, close=client.close)


def _metrics(client: httpx.Client, url: str | None) -> str | None:
    if url is None:
        return None
    try:
        answer = client.get(f"{url.rstrip('/')}/metrics")
    except httpx.HTTPError:  # it is starting, or has ended: its GPUs are idle
        return None
    return answer.text if answer.is_success else None


def _values(text: str) -> dict[str, float]:
    """The unlabelled samples of the simulator's page by name, without prefix."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if name.startswith("vllm:") and rest:
            values.setdefault(name.removeprefix("vllm:"), float(rest.rpartition(" ")[2]))
    return values


def _static(index: int) -> GpuStatic:
    uuid = f"GPU-sim-{index}"
    return GpuStatic(
        index=index,
        vendor="sim",
        name="Simulated GPU",
        uuid=uuid,
        bdf=f"0000:{0x05 + 0x10 * index:02x}:00.0",
        arch="sim",
        engine_index=index,
        socket=uuid,
        compute_partition="SPX",
        memory_partition="NPS1",
        hbm_total_bytes=HBM_BYTES,
        power_cap_default_w=CAP_W,
        gfx_clock_max_mhz=CLOCK_MAX_MHZ,
        memory_clock_max_mhz=_MEMORY_CLOCK_MHZ,
        pcie_width_max=16,
        pcie_speed_max_gts=32.0,
        links_total=_LINKS,
    )
