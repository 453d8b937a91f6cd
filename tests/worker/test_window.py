"""The measured window: what arrived in it, and how many streams were open on average."""

import pytest

from loadgen.stream.samples import ClientSamples
from loadgen.worker.window import Window

S = 1_000_000_000


def test_only_what_arrives_while_it_is_open_counts() -> None:
    meter = ClientSamples()
    window = Window(meter)
    meter.output_tokens, meter.requests = 100, 3
    assert window.take(5 * S) == {}
    window.open(10 * S)
    meter.output_tokens, meter.requests, meter.input_tokens = 130, 5, 40
    first = window.take(11 * S)
    assert (first["window_start_ns"], first["window_end_ns"]) == (10 * S, 11 * S)
    assert (first["window_output_tokens"], first["window_requests"], first["window_input_tokens"]) == (30, 2, 40)
    meter.output_tokens = 131
    assert window.take(12 * S)["window_output_tokens"] == 1
    window.close()
    meter.output_tokens = 999
    assert window.take(13 * S) == {}


def test_mean_and_peak_of_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0
    # A clock of the test's own: the integral is exact.
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    window = Window(ClientSamples())
    window.held_changed(2)
    window.open(0)
    now_ns = 1 * S
    window.held_changed(6)
    now_ns = 3 * S
    window.held_changed(1)
    taken = window.take(4 * S)
    assert taken["held_area_ns"] == (2 * 1 + 6 * 2 + 1 * 1) * S
    assert taken["peak"] == 6
