"""The life of the process: what it logs, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.simulator.__main__ import main_parser, milestones
from loadgen.simulator.physics import PRESETS
from tests.simulator.conftest import Running, request, simulator

ARGV = [sys.executable, "-m", "loadgen.simulator", "--port", "0", "--preset", "fast"]

IN_ORDER = [
    "version 0.32.0",
    "non-default args: {",
    "Resolved architecture:",
    "Initializing a V1 LLM engine",
    "Starting to load model",
    "Loading safetensors checkpoint shards:   0% Completed | 0/4",
    "Loading safetensors checkpoint shards: 100% Completed | 4/4",
    "Loading weights took",
    "Model loading took",
    "Warming up model for the compilation",
    "torch.compile takes",
    "KV cache size: 1,048,576 tokens, Maximum concurrency for 8,192 tokens per request: 128.00x",
    "Capturing CUDA graphs",
    "init engine (",
    "Starting vLLM server on http://127.0.0.1:",
    "Application startup complete.",
]


def test_the_milestones_come_in_vllms_order(shared: Running) -> None:
    lines = iter(shared.lines)
    for wanted in IN_ORDER:
        assert any(wanted in line for line in lines), wanted


def test_a_start_says_how_much_fits() -> None:
    text = "\n".join(milestones(PRESETS["default"], "m"))
    assert "KV cache size: 400,000 tokens, Maximum concurrency for 32,768 tokens per request: 12.21x" in text


def test_every_switch_can_be_turned_off() -> None:
    """A profile's `false` is a `--no-` flag."""
    names = [
        "enable_prefix_caching",
        "enable_prompt_tokens_details",
        "session_tokens",
        "hang_startup",
        "ignore_sigterm",
    ]
    options = vars(main_parser().parse_args([f"--no-{name.replace('_', '-')}" for name in names]))
    assert [options.get(name, options["prefix_caching"]) for name in names] == [False] * len(names)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_well(number: signal.Signals) -> None:
    with simulator() as running, running.connect() as sock:
        sock.sendall(request(8000))
        sock.recv(100)
        running.process.send_signal(number)
        assert running.process.wait(timeout=20) == 0
        assert running.process.stderr is not None
        rest = running.process.stderr.read()
    assert "Shutting down" in rest
    assert rest.rstrip().endswith(f"Finished server process [{running.process.pid}]")


def ends(*flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*ARGV, *flags], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--fail-startup", "torch.OutOfMemoryError: HIP out of memory"],
            ["Traceback (most recent", "HIP out of memory"],
        ),
        (["--port", "{taken}"], ["OSError: "]),
        (["--host", "é..x"], ["OSError: "]),
        (["--die-after-s", "0"], ["Application startup complete.", "EngineCore encountered a fatal error"]),
    ],
)
def test_start_that_fails(shared: Running, flags: list[str], words: list[str]) -> None:
    done = ends(*(flag.replace("{taken}", str(shared.port)) for flag in flags))
    assert done.returncode == 1
    assert all(word in done.stderr for word in words)
    assert ("Traceback" in done.stderr) == ("--fail-startup" in flags)


@pytest.mark.parametrize(
    "flags",
    [
        ["--fault", "nonsense"],
        ["--no-such-flag"],
        ["--max-model-len", "99999999"],
        ["--startup-s", "nan"],
        ["--die-after-s", "nan"],
        ["--keep-alive-s", "abc"],
    ],
)
def test_a_wrong_flag(flags: list[str]) -> None:
    done = ends(*flags)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "_finite" not in done.stderr


def test_a_start_that_hangs_still_hears_a_signal() -> None:
    process = subprocess.Popen([*ARGV, "--hang-startup"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        assert "version" in process.stderr.readline()
        process.terminate()
        assert process.wait(timeout=20) == 0
        assert "Starting vLLM server" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def test_children_in_sessions_of_their_own_end_with_the_server() -> None:
    with simulator("--spawn-children", "2") as running:
        children = children_of(running.process.pid)
        assert len(children) == 2
        assert all(os.getsid(child) == child for child in children)
        for child in children:
            os.kill(child, signal.SIGTERM)
        assert children_of(running.process.pid) == children
        running.process.terminate()
        assert running.process.wait(timeout=20) == 0
        assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_it_can_ignore_sigterm() -> None:
    with simulator("--ignore-sigterm") as running:
        running.process.terminate()
        assert running.truth()["requests"]["open"] == 0
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(timeout=20) == 0
