"""Evidence is taken from real processes, pages and files; what cannot be had is named with its reason."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.run import evidence
from loadgen.run.evidence import Scene, gpu_table, take_evidence
from loadgen.schema.samples import GpuProcess, GpuSample

PAGE = 'vllm:generation_tokens_total{{engine="0"}} {tokens}\nvllm:prompt_tokens_total{{engine="0"}} 7\n'
# Of the process that answers: it moves while the engine stands still.
PAGE += "process_cpu_seconds_total {reading}\n"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "_BETWEEN_PAGES_S", 0.01)


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child that waits in the kernel."""
    code = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(flush=True); child.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        subprocess.run(["pkill", "-P", str(process.pid)], check=False)
        process.kill()


def pages(*tokens: int) -> object:
    readings = enumerate(tokens)

    async def page() -> str:
        reading, count = next(readings)
        return PAGE.format(tokens=count, reading=reading)

    return page


async def no_gpus() -> str:
    return ""


def scene(**changes: object) -> Scene:
    empty = Scene("stalled for 40 s", lines=(), metrics={}, pids=(), logs=(), gpus=no_gpus)
    return empty._replace(**changes)  # type: ignore[arg-type]


def page_of(of: Scene, folder: Path) -> str:
    return asyncio.run(take_evidence(of, folder)).read_text()


def test_evidence_of_somebody_elses_server_names_what_is_missing(tmp_path: Path) -> None:
    page = page_of(scene(metrics={"http://h:8000": pages(5, 5)}, lines=[b'{"t_s":1}']), tmp_path)
    assert page.startswith("# stalled for 40 s\n")
    assert "- none of 2 counters of /metrics moved in 0.01 s" in page
    assert "- the end of the server's log: vramp did not start this server" in page
    assert (tmp_path / "samples.jsonl").read_text() == '{"t_s":1}'
    assert not (tmp_path / "tasks.txt").exists()


def test_evidence_says_which_counters_move(tmp_path: Path) -> None:
    page = page_of(scene(metrics={"http://h:8000": pages(5, 9)}), tmp_path)
    assert 'moved in 0.01 s, such as vllm:generation_tokens_total{engine="0"}' in page


def test_one_of_two_servers_whose_counters_stand_does_not_hide_the_other(tmp_path: Path) -> None:
    page = page_of(scene(metrics={"http://h:8000": pages(5, 9), "http://h:8001": pages(5, 5)}), tmp_path)
    assert "- 1 of 4 counters of /metrics moved" in page


def test_of_a_server_that_has_ended_nothing_is_said_about_its_processes(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    page = page_of(scene(pids=[ended.pid], metrics={"http://h:8000": pages(5, 5)}), tmp_path)
    assert "CPU use" not in page
    assert "state, where it waits, CPU time: the server's processes have ended" in page


def test_evidence_of_ones_own_server_has_its_threads_and_log(tmp_path: Path, server: subprocess.Popen[bytes]) -> None:
    log = tmp_path / "serve.log"
    log.write_text("INFO token hf_abcdefghijklmnopqrstuvwxyzabcdefgh\nINFO last line\n")
    page = page_of(scene(pids=[server.pid], logs=[log]), tmp_path / "evidence")
    assert "- CPU use of the server's processes, of a core: none at least 5%\n" in page
    tasks = (tmp_path / "evidence" / "tasks.txt").read_text()
    assert f"process {server.pid} python" in tasks
    assert " sleep S " in tasks
    kept = (tmp_path / "evidence" / "server.log").read_text()
    assert "last line" in kept
    assert "hf_abc" not in kept


def test_a_collector_that_hangs_costs_only_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LIMIT_S", 0.05)

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    async def gpus() -> str:
        held = GpuProcess(7, "python", 3 << 30, user="ann")
        return gpu_table([GpuSample(0, 0.0, gfx_percent=99.0, processes=(held,)), GpuSample(1, 0.0)])

    page = page_of(scene(metrics={"http://h:8000": never}, gpus=gpus), tmp_path)
    assert "the servers' /metrics, read twice: it took longer than 0 s" in page
    lines = ("gpu 0: 99% busy", "  pid 7 (python) ann 3.0 GiB", "gpu 1: no figures", "  its processes are unknown")
    assert (tmp_path / "gpus.txt").read_text().splitlines() == list(lines)


def test_a_page_that_does_not_answer_says_so(tmp_path: Path) -> None:
    async def refuses() -> str:
        raise ConnectionRefusedError("refused")

    assert "/metrics does not answer: refused" in page_of(scene(metrics={"http://h": refuses}), tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        page_of(scene(), tmp_path / "file" / "evidence")


def test_of_a_server_in_a_container_the_page_says_where_its_processes_are(tmp_path: Path) -> None:
    page = page_of(scene(containers=["docker top vramp-8000"]), tmp_path)
    why = "vramp reads no processes in a container; `docker top vramp-8000` lists them"
    assert f"- Python stacks of the server's processes: {why}\n" in page


def test_a_place_in_the_kernel_keeps_its_last_zero(tmp_path: Path) -> None:
    task = tmp_path / "7"
    task.mkdir()
    (task / "stat").write_text("7 (a b) S " + " ".join("0" * 40))
    for place, shown in (("ep_poll.constprop.0", "ep_poll.constprop.0"), ("0", "-"), ("", "-")):
        (task / "wchan").write_text(place)
        assert evidence._thread(task) == f"  7 a b S {shown} 0.0 s of CPU"
