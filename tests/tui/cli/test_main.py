"""The command line as scripts see it: exit codes, what goes to stdout, what Ctrl-C and kill -9 leave behind."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loadgen.build import version_words
from tests.engines import NOBODY, Simulator
from tests.tui.cli.commands import ROOT, SMALL, Said, on_a_full_disk, start, vramp, wait_for
from tui.catalog import find_profile

HEAVY = "{'textual', 'rich', 'pydantic', 'numpy', 'httpx', 'uvloop', 'hdrh', 'asyncio'}"


def imported(code: str, among: str) -> str:
    """Which of some modules a piece of code imports, in a process of its own."""
    script = f"{code}\nimport sys\nprint(sorted({among} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.strip()


def test_help_needs_nothing_heavy() -> None:
    """`vramp --help` answers at once because it imports neither a UI nor a validator nor numpy."""
    code = "import tui.cli.__main__\ntry:\n    tui.cli.__main__.main(['--help'])\nexcept SystemExit:\n    pass"
    assert imported(code, HEAVY) == "[]"


def test_the_core_never_imports_the_screen() -> None:
    code = "import loadgen.run, loadgen.worker.__main__, loadgen.report.text, loadgen.simulator.__main__"
    assert imported(code, "{'textual', 'tui'}") == "[]"


def test_a_run_prints_its_table_and_leaves_its_result(engine: Simulator, said: Said, tmp_path: Path) -> None:
    done = said("run", "--url", engine.url, "--concurrency", "1,4", "--requests", "12", "--json", "o.json", *SMALL)
    assert done.code == 0, done.err
    assert "Healthy? Yes: 24 requests completed, none failed" in done.out
    for latency in ("TTFT", "TPOT", "ITL", "E2E"):
        assert done.out.count(f"\n{latency} ") == 2
    assert "stage 1 of 2" in done.err
    document = json.loads((tmp_path / "o.json").read_text())
    assert document["schema"] == "vramp.result/1"
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_without_a_terminal_the_cockpit_is_a_run(engine: Simulator, said: Said) -> None:
    done = said("--url", engine.url, "--concurrency", "2", "--requests", "4", *SMALL)
    assert done.code == 0
    assert "4 requests completed, none failed" in done.out


@pytest.mark.parametrize(
    ("slo", "code", "word"), [((), 1, ""), (("--slo", "ttft_p50=1h"), 1, "missed"), (("--slo", "failed=40%"), 0, "met")]
)
def test_failures_beyond_the_limit_are_exit_code_1(
    engine: Simulator, said: Said, slo: tuple[str, ...], code: int, word: str
) -> None:
    engine.faults("http_500:every=3")
    load = ["--url", engine.url, "--concurrency", "2", "--requests", "30"]
    done = said("run", *load, *slo, *SMALL)
    assert done.code == code, done.err
    assert word in done.out
    last = done.err.splitlines()[-1]
    assert ("requests failed (http_5xx); slo.failed allows 0 %" in last) == (code == 1)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "nowhere.toml"], 2, "no such profile"),
        (["run", "--bogus"], 2, "unrecognized arguments"),
        (["run", "simulator", "--set", "load.isl"], 2, "key.path=value"),
        (["run", "simulator", "--set", "load.islx=3"], 2, "did you mean load.isl?"),
        (["run", "simulator", "--concurrency", "two"], 2, "--concurrency two"),
        (["run", "simulator", "--concurrency", "1", "--rate", "2"], 2, "not allowed with"),
        (["run", "simulator", "--slo", "ttft_p99"], 2, "metric_statistic=time"),
        (["run", "simulator", "--slo", "ttfx_p99=2s"], 2, "ttft_p99"),
        (["run", "simulator", "--slo", "failed=120%"], 2, 'a share such as "1%"'),
        (["run", "simulator", "--slo", "failed=many"], 2, 'a share such as "1%"'),
        (["run", "simulator", "--set", "slo.failed=-1"], 2, 'a share such as "1%"'),
        (["run", "--url", "localhost"], 2, "http://host:port"),
        (["run", "--url", NOBODY], 3, "nothing listens"),
    ],
)
def test_mistakes_have_a_message_and_an_exit_code(said: Said, words: list[str], code: int, message: str) -> None:
    done = said(*words)
    assert done.code == code
    assert message in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_a_start_that_would_fail_is_refused_unless_it_is_forced(said: Said) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"server.port={taken.getsockname()[1]}"
        refused = said("run", "simulator", "--set", port, "--concurrency", "1")
        forced = said("run", "simulator", "--set", port, "--concurrency", "1", "--force")
    assert refused.code == forced.code == 3
    assert "the preflight found that the start would fail" in refused.err and "port-taken" in refused.err
    assert "the preflight found that the start would fail" not in forced.err


def test_unwritable_folder_is_reported_before_the_start(tmp_path: Path, said: Said) -> None:
    (tmp_path / "runs").write_text("in the way")
    done = said("run", "--url", NOBODY)
    assert done.code == 2
    assert "nothing was started" in done.err
    (tmp_path / "runs").unlink()
    done = said("run", "--url", NOBODY, "--json", "/proc/nothing/o.json")
    assert done.code == 2
    assert "nothing was started" in done.err


def test_a_full_disk_costs_the_file_and_not_the_run(engine: Simulator, tmp_path: Path) -> None:
    """The size of a file is limited instead of a disk: the same error at the same calls."""
    done = vramp(
        tmp_path,
        *("run", "--url", engine.url, "--concurrency", "4", "--requests", "40", *SMALL),
        environment={"PYTHONDONTWRITEBYTECODE": "1"},  # it would be cut off, too
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)),
    )
    assert done.returncode == 1
    assert "40 requests completed" in done.stdout
    assert "the journal cannot be written" in done.stderr
    assert "the result cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_twice_aborts_even_a_server_that_will_not_go(tmp_path: Path) -> None:
    args = 'args = {preset = "fast", base-ms = 5, ignore-sigterm = true}'
    (tmp_path / "p.toml").write_text(f'[server]\nengine = "simulator"\n{args}\n[load]\nduration = "60s"\n')
    with start(tmp_path, "run", "p.toml", "--json", "o.json") as process:
        wait_for(process, "tok/s")
        tree = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        wait_for(process, "stopping")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads((tmp_path / "o.json").read_text())["state"] == "stopped"
    assert psutil.wait_procs(tree, timeout=10)[1] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_however_vramp_ends(tmp_path: Path, number: signal.Signals) -> None:
    """The server has children in sessions of their own that ignore SIGTERM, as an engine core might be."""
    server = '[server]\nengine = "simulator"\nargs = {preset = "fast", base-ms = 5, spawn-children = 2}\n'
    (tmp_path / "p.toml").write_text(f'{server}[load]\nduration = "60s"\nisl = 16\nosl = 8\n')
    with start(tmp_path, "run", "p.toml") as process:
        wait_for(process, "tok/s")
        tree = psutil.Process(process.pid).children(recursive=True)
        # guard, server, its two children, worker
        assert len(tree) >= 5
        process.send_signal(number)
        process.communicate(timeout=30)
    _, left = psutil.wait_procs(tree, timeout=15)
    assert left == []
    journal = next((tmp_path / "runs").iterdir()) / "journal.jsonl"
    assert len(journal.read_text().splitlines()) > 3
    if number == signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
    else:
        assert process.returncode == 130


def test_what_is_stopped_does_not_outlive_a_vramp_that_is_killed(tmp_path: Path) -> None:
    """Nobody continues them: a stopped process never reads that its pipe has ended."""
    server = '[server]\nengine = "simulator"\nargs = {preset = "fast"}\n'
    (tmp_path / "p.toml").write_text(f'telemetry = "sim"\n{server}[load]\nduration = "60s"\nisl = 16\nosl = 8\n')
    with start(tmp_path, "run", "p.toml") as process:
        wait_for(process, "tok/s")
        tree = psutil.Process(process.pid).children(recursive=True)
        words = " ".join(word for one in tree for word in one.cmdline())
        assert all(f".{kind} " in words for kind in ("guard", "simulator", "worker", "telemetry"))
        for one in tree:
            one.suspend()
        process.kill()
        process.communicate(timeout=30)
    assert psutil.wait_procs(tree, timeout=15)[1] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_during_start_exits_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    with start(tmp_path, "run", "--url", NOBODY, *SMALL) as process:
        # From then on a signal is vramp's own affair, and no more than its imports have begun.
        while not caught(process.pid, signal.SIGTERM):
            time.sleep(0.001)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def caught(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for this signal."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_profile_is_found_by_path_or_by_name() -> None:
    assert find_profile("simulator").name == "simulator.toml"
    assert find_profile("simulator").exists()
    assert find_profile("x/y.toml") == Path("x/y.toml")


def test_simulate_runs_the_engine_alone(tmp_path: Path) -> None:
    with start(tmp_path, "simulate", "--preset", "fast", "--port", "0") as process:
        wait_for(process, "Starting vLLM server on http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_version(said: Said) -> None:
    assert said("--version")[:2] == (0, f"vramp {version_words()}\n")


def test_a_full_disk_for_stdout_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = on_a_full_disk("baseline", "list", environment=_with_a_baseline(tmp_path))
    assert done.stderr == "vramp: standard output cannot be written: No space left on device\n"
    assert done.returncode == 1


def test_without_standard_streams_no_file_takes_their_place(tmp_path: Path) -> None:
    closed = 'exec "$@" <&- >&- 2>&-'
    done = vramp(tmp_path, "baseline", "list", shell=closed, environment=_with_a_baseline(tmp_path))
    assert done.returncode == 0


def _with_a_baseline(folder: Path) -> dict[str, str]:
    kept = folder / "vramp/baselines"
    kept.mkdir(parents=True)
    (kept / "old.json").write_text("no result")
    return {"XDG_STATE_HOME": str(folder)}


@pytest.mark.parametrize(
    "words", [["web", "simulator", "--port", "99999"], ["bench", "serve", "--port", "-1"], ["web", "--port", "x"]]
)
def test_a_port_that_cannot_be_is_usage(words: list[str], said: Said) -> None:
    done = said(*words)
    assert done.code == 2 and "--port" in done.err


def test_a_name_too_long_for_a_result_is_reported_before_anything_starts(said: Said) -> None:
    done = said("run", "simulator", "--json", "x" * 300)
    assert done.code == 2
    assert "the result cannot be written there: File name too long; nothing was started" in done.err


def test_a_folder_that_is_gone_is_reported(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = vramp(tmp_path, "report", "last", shell='cd gone && rmdir ../gone && exec "$@"')
    assert done.stderr == "vramp: the current folder no longer exists: change to another\n"
    assert done.returncode == 2
