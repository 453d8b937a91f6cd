"""Simulated GPUs: the model as a table and as laws, and the child next to a real simulator."""

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.telemetry.sim import (
    CAP_W,
    HBM_BYTES,
    IDLE_W,
    SimLoad,
    SimState,
    load_between,
    observed,
    open_sim,
    step,
)
from tests.engines import simulator
from tests.telemetry.children import listen

_BUSY = SimLoad(serving=True, running=64, prompt_tokens_per_s=20_000, output_tokens_per_s=8_000)
_loads = st.builds(SimLoad, st.booleans(), st.floats(0, 500), st.floats(0, 1e5), st.floats(0, 1e5))


def _after(gpu: int, load: SimLoad, seconds: int) -> SimState:
    state = SimState()
    for _ in range(seconds):
        state = step(gpu, state, load, 1.0)
    return state


def test_an_idle_gpu_is_idle() -> None:
    gpu = 0
    state = _after(gpu, SimLoad(), 60)
    now = observed(gpu, state, SimLoad(), 1.0)
    assert (now.gfx_percent, now.memory_percent, now.gfx_clock_mhz) == (0, 0, 132)
    assert now.power_w == IDLE_W
    assert state.energy_j == pytest.approx(60 * IDLE_W)


def test_memory_fills_when_a_server_is_there_and_not_before() -> None:
    gpu = 0
    assert _after(gpu, SimLoad(), 10).hbm_bytes < 1e9
    full = _after(gpu, SimLoad(serving=True), 10)
    assert full.hbm_bytes == HBM_BYTES * 0.9
    assert step(gpu, full, SimLoad(), 1.0).hbm_bytes < 1e9


def test_power_lags_behind_the_load_and_heat_behind_power() -> None:
    gpu = 2
    powers = [_after(gpu, _BUSY, seconds).power_w for seconds in (0, 1, 3, 20)]
    assert powers == sorted(powers)
    assert powers[1] < 0.7 * powers[3]
    temperatures = [_after(gpu, _BUSY, seconds).temperature_c for seconds in (0, 3, 20, 90)]
    assert temperatures == sorted(temperatures)
    assert temperatures[-1] > 70


@given(load=_loads, dt_s=st.floats(0, 20), cut=st.floats(0, 1))
def test_cutting_a_time_into_pieces_changes_nothing(load: SimLoad, dt_s: float, cut: float) -> None:
    gpu = 3
    whole = step(gpu, SimState(), load, dt_s)
    pieces = step(gpu, step(gpu, SimState(), load, dt_s * cut), load, dt_s * (1 - cut))
    assert pieces.power_w == pytest.approx(whole.power_w)
    assert pieces.energy_j == pytest.approx(whole.energy_j, abs=1e-6)
    assert pieces.hbm_bytes == pytest.approx(whole.hbm_bytes)
    assert pieces.link_bytes == pytest.approx(whole.link_bytes)


@given(load=_loads, index=st.integers(0, 63), seconds=st.integers(0, 40))
def test_no_load_makes_an_impossible_gpu(load: SimLoad, index: int, seconds: int) -> None:
    state = _after(index, load, seconds)
    now = observed(index, state, load, 0.0)
    assert IDLE_W - 0.1 <= (now.power_w or 0) <= CAP_W
    assert state.energy_j <= seconds * CAP_W
    assert 132 <= (now.gfx_clock_mhz or 0) <= 2100
    shares = (now.gfx_percent, now.memory_percent, *(now.throttle_percent or {}).values())
    assert all(0 <= (share or 0) <= 100 for share in shares)
    assert 40 <= (now.temperature_hotspot_c or 0) <= 110


def test_the_load_is_the_difference_of_two_pages() -> None:
    page = 'vllm:num_requests_running{a="b"} 12.0\nvllm:prompt_tokens_total{a="b"} %d.0\n'
    assert load_between((1, page % 100), (3, page % 300)) == SimLoad(True, 12, 100, 0)
    assert load_between((1, None), (3, page % 300)) == SimLoad(True, 12, 0, 0)
    assert load_between((1, page % 300), (3, page % 100)) == SimLoad(True, 12, 0, 0)  # it was restarted
    assert load_between((3, page % 300), (3, page % 400)) == SimLoad(True, 12, 0, 0)
    assert load_between((1, page % 300), (3, None)) == SimLoad()


def test_gpus_carry_the_load_of_a_real_simulator_and_outlive_it() -> None:
    with simulator() as engine:
        backend = open_sim(url=engine.url, gpus=2)
        request = {"model": "simulator", "prompt": "hello", "max_tokens": 4000, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{engine.url}/v1/completions", json=request, trust_env=False) as answer:
            chunks = answer.iter_bytes()
            next(chunks)
            busy = backend.sample(True, True)
        engine.process.kill()
        engine.process.wait()
        left = backend.sample(False, False)
    backend.close()
    assert [gpu.index for gpu in busy] == [0, 1]
    assert (busy[0].gfx_percent or 0) > 20
    assert (busy[0].hbm_used_bytes or 0) > 300e6
    assert busy[0].sm_percent and busy[0].pcie_bytes_per_s and (busy[0].xids, busy[0].bad_pages) == (0, 0)
    assert [process.name for process in busy[1].processes or ()] == ["VLLM::Worker_TP1"]
    assert (left[0].gfx_percent, left[0].hbm_used_bytes) == (0, 300_000_000)
    assert (left[0].energy_j or 0) > (busy[0].energy_j or 0)


def test_the_child_offers_the_gpus_that_its_flags_name() -> None:
    heard = listen("--backend", "sim", "--gpus", "3")
    assert heard.opened is not None
    assert [gpu.uuid for gpu in heard.opened.gpus] == ["GPU-sim-0", "GPU-sim-1", "GPU-sim-2"]
    assert [gpu.power_cap_w for gpu in heard.samples[0].gpus] == [CAP_W] * 3
