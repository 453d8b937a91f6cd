"""The parent's side with real children: good ones, and every way in which one can go wrong."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent

import psutil
import pytest
from msgspec.structs import replace

from loadgen.schema.samples import GpuProcess, GpuSample, carried
from loadgen.telemetry.backends import BackendOption, backend_options, has_sign
from loadgen.telemetry.monitor import Monitor, Timing
from loadgen.vendors import AMD, NVIDIA
from tests.telemetry.children import simulated_gpus, stand_in

_QUICK = Timing(open_s=20, silence_s=20, pause_s=0.01)
_GOOD = "opened()\nsampled()\nwait()\n"


@asynccontextmanager
async def _watching(
    folder: Path,
    options: Mapping[str, Sequence[BackendOption]],
    timing: Timing = _QUICK,
    interval_s: float = 1.0,
) -> AsyncIterator[Monitor]:
    monitor = Monitor(options, folder=folder, interval_s=interval_s, timing=timing)
    monitor.start()
    try:
        yield monitor
    finally:
        await monitor.close()


async def _until(monitor: Monitor, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await monitor.change()


def _pids(monitor: Monitor) -> list[int]:
    return [source.child.pid for source in monitor._sources.values() if source.child is not None]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_simulated_gpus_are_watched_and_their_child_ends_with_the_monitor(tmp_path: Path) -> None:
    async with _watching(tmp_path, simulated_gpus(2), interval_s=0.05) as monitor:
        assert (monitor.gpus, monitor.latest, monitor.new_samples(), monitor.stale) == ((), {}, [], False)
        await _until(monitor, lambda: len(monitor.latest) == 2 and monitor.latest[0].t_s > 0)
        looks = monitor.new_samples()
        assert [gpu.index for gpu in looks[0].gpus] == [0, 1]
        assert monitor.new_samples() == []
        assert [gpu.name for gpu in monitor.gpus] == ["Simulated GPU"] * 2
        (status,) = monitor.status
        assert (status.vendor, status.option, status.works, status.failures) == ("sim", "sim", True, {})
        assert monitor.settled
        pid = _pids(monitor)[0]
        assert _lives(pid)
    assert not _lives(pid)
    assert (tmp_path / "telemetry-sim.log").read_text() == ""


async def test_nothing_to_watch_is_no_error(tmp_path: Path) -> None:
    async with _watching(tmp_path, backend_options("off")) as monitor:
        assert (monitor.gpus, monitor.stale, monitor.settled, monitor.status) == ((), False, True, ())
    await monitor.close()


async def test_the_next_attempt_is_tried_when_one_refuses(tmp_path: Path) -> None:
    refuses = stand_in(
        tmp_path, "refuses", """say('{"type":"Refused","backend":"sim","reason":"no driver\\\\u001b[2J"}')"""
    )
    dies = stand_in(tmp_path, "dies", "print('free(): invalid next size', file=sys.stderr)\nos.abort()\n")
    silent = stand_in(tmp_path, "ends", "")
    absent = BackendOption("absent", "sim", program=(str(tmp_path / "absent"),))
    options = [refuses, dies, silent, absent, stand_in(tmp_path, "good", _GOOD)]
    async with _watching(tmp_path, {"amd": options}) as monitor:
        await _until(monitor, lambda: monitor.settled)
        (status,) = monitor.status
        assert (status.option, status.works, status.restarts) == ("good", True, 0)
        assert "no driver" in status.failures["refuses"]
        assert "\x1b" not in status.failures["refuses"]
        assert status.failures["dies"] == "it was killed by SIGABRT: free(): invalid next size"
        assert status.failures["ends"] == "it ended with status 0"
        assert status.failures["absent"].startswith("its process could not be started: No such file or directory")


async def test_a_box_where_nothing_works_says_so(tmp_path: Path) -> None:
    options = [stand_in(tmp_path, "dies", "sys.exit(7)")]
    async with _watching(tmp_path, {"amd": options}) as monitor:
        await _until(monitor, lambda: monitor.settled)
        (status,) = monitor.status
        assert (status.option, status.works) == (None, False)
        assert status.failures == {"dies": "it ended with status 7"}


async def test_all_are_tried_again_later_and_that_is_said(tmp_path: Path) -> None:
    first = tmp_path / "first"
    late = stand_in(
        tmp_path, "late", f"if not os.path.exists({str(first)!r}): open({str(first)!r}, 'x'); sys.exit(7)\n" + _GOOD
    )
    async with _watching(tmp_path, {"amd": [late]}, replace(_QUICK, again_s=(0.05, 0.05))) as monitor:
        await _until(monitor, lambda: monitor.status[0].again_s is not None)
        assert (monitor.status[0].option, monitor.settled) == (None, True)
        await _until(monitor, lambda: monitor.status[0].works)
        assert (monitor.status[0].option, monitor.status[0].again_s) == ("late", None)


async def test_the_rounds_end(tmp_path: Path) -> None:
    options = [stand_in(tmp_path, "dies", "sys.exit(7)")]
    async with _watching(tmp_path, {"amd": options}, replace(_QUICK, again_s=(0.01,))) as monitor:
        await _until(monitor, lambda: monitor.status[0].again_s is not None)
        await _until(monitor, lambda: monitor.status[0].option is None and monitor.status[0].again_s is None)
        assert monitor.settled


async def test_one_that_does_not_open_in_time_is_given_up(tmp_path: Path) -> None:
    hangs = stand_in(tmp_path, "hangs", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n")
    timing = replace(_QUICK, open_s=0.3)
    async with _watching(tmp_path, {"amd": [hangs]}, timing) as monitor:
        await _until(monitor, lambda: monitor.settled)
        assert monitor.status[0].failures == {"hangs": "it sent nothing for 0.3 s"}


async def test_silent_child_is_restarted_then_replaced(tmp_path: Path) -> None:
    mute = stand_in(tmp_path, "mute", "opened()\nsampled()\nwhile True: signal.pause()\n")
    good = stand_in(tmp_path, "good", _GOOD)
    timing = replace(_QUICK, silence_s=0.3)
    async with _watching(tmp_path, {"amd": [mute, good]}, timing, interval_s=0.05) as monitor:
        await _until(monitor, lambda: monitor.status[0].option == "good")
        assert monitor.status[0].failures["mute"] == "it sent nothing for 0.3 s"
        assert monitor.status[0].restarts == 3
        assert len(monitor.new_samples()) == 4


async def test_a_source_whose_samples_stop_is_stale(tmp_path: Path) -> None:
    mute = stand_in(tmp_path, "mute", "opened()\nsampled()\nwhile True: signal.pause()\n")
    timing = replace(_QUICK, silence_s=0.5, max_failures=1)
    async with _watching(tmp_path, {"amd": [mute]}, timing, interval_s=0.05) as monitor:
        await _until(monitor, lambda: bool(monitor.latest))
        await _until(monitor, lambda: monitor.status[0].option is None)
        assert monitor.stale
        assert monitor.status[0].stale
        assert monitor.latest[0].power_w == 100


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("opened()\nos.write(1, bytes(range(256)) * 100)\nwait()\n", "an invalid line"),
        ('opened()\nsay(\'{"type":"Sampled"}\')\nwait()\n', "an invalid line"),
        ("opened()\nwhile True: os.write(1, b'x' * 65536)\n", "a line of more than 1 MiB"),
        ("opened()\nwhile True: sampled()\n", "it flooded"),
        ("opened()\nwhile True: sampled(extra=',\"missing\":{\"x\":\"' + 'y' * 500000 + '\"}')\n", "it flooded"),
        ("opened()\nopened()\nwait()\n", "it opened twice"),
        ("sampled()\nwait()\n", "before its first line"),
        ("opened()\nos.close(1)\nwait()\n", "it closed its output and runs on"),
        ('opened()\nsay(\'{"type":"Refused","backend":"sim","reason":"unloaded"}\')\nwait()\n', "unloaded"),
    ],
)
async def test_nonsense_and_floods_end_a_child(tmp_path: Path, body: str, words: str) -> None:
    bad = stand_in(tmp_path, "bad", body)
    async with _watching(tmp_path, {"amd": [bad]}, replace(_QUICK, max_failures=1)) as monitor:
        pids = set()
        while not monitor.settled or monitor.status[0].option is not None:
            pids.update(_pids(monitor))
            await monitor.change()
        assert words in monitor.status[0].failures["bad"]
        assert not any(_lives(pid) for pid in pids)
        assert len(monitor.new_samples()) <= 500


async def test_closing_does_not_wait_for_a_child_that_ignores_everything(tmp_path: Path) -> None:
    body = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nopened()\nsampled()\nwhile True: signal.pause()\n"
    async with _watching(tmp_path, {"amd": [stand_in(tmp_path, "deaf", body)]}) as monitor:
        await _until(monitor, lambda: bool(monitor.latest))
        (pid,) = _pids(monitor)
        for _ in range(3000):  # more than a pipe holds, and nobody reads them
            monitor.show_processes(True)
    assert not _lives(pid)


async def test_a_stopped_child_is_killed_too(tmp_path: Path) -> None:
    async with _watching(tmp_path, {"amd": [stand_in(tmp_path, "good", _GOOD)]}) as monitor:
        await _until(monitor, lambda: bool(monitor.latest))
        (pid,) = _pids(monitor)
        os.kill(pid, signal.SIGSTOP)
    assert not _lives(pid)


async def test_closing_while_a_child_starts_leaves_nothing(tmp_path: Path) -> None:
    monitor = Monitor({"amd": [stand_in(tmp_path, "good", _GOOD)]}, folder=tmp_path)
    monitor.start()
    await asyncio.sleep(0)  # the task runs up to where the child is there and its pipe is not yet connected
    await monitor.close()
    await monitor.close()
    assert _pids(monitor) == []


def test_children_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, pathlib
from loadgen.telemetry.backends import backend_options
from loadgen.telemetry.monitor import Monitor
async def main():
    monitor = Monitor(backend_options("sim"), folder=pathlib.Path({str(tmp_path)!r}))
    monitor.start()
    while not monitor.settled:
        await monitor.change()
    print("settled", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            parent.stdout.readline()
            (process,) = psutil.Process(parent.pid).children()
            child = os.pidfd_open(process.pid)
        finally:
            parent.kill()
    ended, _, _ = select.select([child], [], [], 60)
    os.close(child)
    assert ended


async def test_two_vendors_share_no_number(tmp_path: Path) -> None:
    two = stand_in(tmp_path, "two", "opened(2)\nsampled(gpus=2)\nwait()\n")
    three = stand_in(tmp_path, "three", "opened(3)\nsampled(gpus=3, power_w=300)\nwait()\n")
    async with _watching(tmp_path, {"amd": [two], "nvidia": [three]}) as monitor:
        await _until(monitor, lambda: len(monitor.latest) == 5)
        assert [gpu.index for gpu in monitor.gpus] == [0, 1, 2, 3, 4]
        assert sorted(gpu.power_w or 0 for gpu in monitor.latest.values()) == [100, 100, 300, 300, 300]
        assert all(number == gpu.index for number, gpu in monitor.latest.items())
        taken = {gpu.index: gpu.power_w for look in monitor.new_samples() for gpu in look.gpus}
        assert taken == {number: gpu.power_w for number, gpu in monitor.latest.items()}


async def test_a_device_keeps_its_number_through_a_restart(tmp_path: Path) -> None:
    body = "opened(2)\nsampled(gpus=2, power_w=os.getpid())\nsys.exit(3)\n"
    async with _watching(tmp_path, {"amd": [stand_in(tmp_path, "short", body)]}) as monitor:
        await _until(monitor, lambda: monitor.status[0].option is None)
        looks = monitor.new_samples()
    assert [[gpu.index for gpu in look.gpus] for look in looks] == [[0, 1]] * 3
    assert len({look.gpus[0].power_w for look in looks}) == 3


async def test_a_device_keeps_its_number_when_one_before_it_is_lost(tmp_path: Path) -> None:
    """The second of three GPUs falls off the bus: the driver counts the third as the second from then on."""
    body = """
        left = ["a", "c"] if os.path.exists("began") else ["a", "b", "c"]
        open("began", "w").close()
        gpus = ",".join(f'{{"index":{n},"vendor":"sim","name":"GPU","bdf":"{bdf}"}}' for n, bdf in enumerate(left))
        say(f'{{"type":"Opened","backend":"sim","meta":{{}},"gpus":[{gpus}]}}')
        looks = ",".join(f'{{"index":{n},"t_s":{4 - len(left)},"power_w":{ord(bdf)}}}' for n, bdf in enumerate(left))
        say(f'{{"type":"Sampled","t_s":1,"took_ms":1,"gpus":[{looks}]}}')
        wait() if len(left) == 2 else sys.exit(3)
    """.replace("began", str(tmp_path / "began"))
    async with _watching(tmp_path, {"amd": [stand_in(tmp_path, "lossy", dedent(body))]}) as monitor:
        await _until(monitor, lambda: bool(monitor.latest) and monitor.latest[0].t_s == 2)
        looks = monitor.new_samples()
        assert [(gpu.index, gpu.bdf) for gpu in monitor.gpus] == [(0, "a"), (2, "c")]
    watts = [{gpu.index: gpu.power_w for gpu in look.gpus} for look in looks]
    assert watts[0] == {0: ord("a"), 1: ord("b"), 2: ord("c")}
    assert watts[1:] == [{0: ord("a"), 2: ord("c")}]


async def test_processes_are_requested_and_forgotten(tmp_path: Path) -> None:
    body = (
        "opened()\nsampled()\n"
        "for line in sys.stdin:\n"
        '    sampled(extra=\',"processes":[{"pid":7,"name":"a\\\\u001b[2Jb"}]\' if \'true\' in line else \'\')\n'
    )
    async with _watching(tmp_path, {"amd": [stand_in(tmp_path, "lists", body)]}) as monitor:
        await _until(monitor, lambda: bool(monitor.latest))
        monitor.show_processes(True)
        await _until(monitor, lambda: monitor.latest[0].processes is not None)
        assert monitor.latest[0].processes == (GpuProcess(7, "a\N{SYMBOL FOR SUBSTITUTE FORM TWO}[2Jb"),)
        monitor.show_processes(False)
        assert monitor.latest[0].processes is None


def test_what_a_look_left_out_is_as_it_was() -> None:
    before = GpuSample(0, 1.0, power_w=100, power_cap_w=750, ecc_correctable=3, missing={"links_up": "no link"})
    now = GpuSample(0, 2.0, power_w=200, gfx_percent=9, missing={"ecc_correctable": "no permission"})
    assert carried(before, now) == GpuSample(
        0,
        2.0,
        power_w=200,
        power_cap_w=750,
        gfx_percent=9,
        missing={"links_up": "no link", "ecc_correctable": "no permission"},
    )
    assert carried(None, now) == now


def _sysfs_card(root: Path, vendor: str) -> None:
    device = root / "sys/class/drm/card0/device"
    device.mkdir(parents=True)
    (device / "vendor").write_text(vendor + "\n")


def test_a_vendor_is_tried_where_there_is_a_sign_of_it(tmp_path: Path) -> None:
    assert backend_options("auto", environ={}, root=tmp_path) == {}
    _sysfs_card(tmp_path, "0x1002")
    assert has_sign(AMD, {}, tmp_path)
    assert not has_sign(NVIDIA, {}, tmp_path)
    found = backend_options("auto", environ={}, root=tmp_path)
    assert list(found) == ["amd"]
    assert [attempt.backend for attempt in found["amd"]][-1] == "amd-sysfs"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert list(backend_options("auto", environ={}, root=tmp_path)) == ["amd", "nvidia"]


def test_a_driver_that_is_not_loaded_or_a_library_alone_is_a_sign_too(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert has_sign(AMD, {}, tmp_path)
    library = tmp_path / "somewhere/libnvidia-ml.so.1"
    library.parent.mkdir()
    library.touch()
    assert has_sign(NVIDIA, {"LD_LIBRARY_PATH": f":{library.parent}"}, tmp_path)
    assert not has_sign(NVIDIA, {}, tmp_path)
    _sysfs_card(tmp_path, "0x10de")
    assert has_sign(NVIDIA, {}, tmp_path)


def test_a_backend_that_is_named_is_tried_whatever_is_here(tmp_path: Path) -> None:
    assert [each.name for each in backend_options("nvml", environ={}, root=tmp_path)["nvidia"]] == ["nvml"]
    assert [each.name for each in backend_options("amd-sysfs", environ={}, root=tmp_path)["amd"]] == ["amd-sysfs"]
    assert all(each.backend == "amdsmi" for each in backend_options("amdsmi", environ={}, root=tmp_path)["amd"])
    (sim,) = backend_options("sim", url="http://127.0.0.1:8000")["sim"]
    assert sim.arguments == ("--url", "http://127.0.0.1:8000")


async def test_a_mistake_of_ours_ends_telemetry_and_is_reported(tmp_path: Path) -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    broken = replace(stand_in(tmp_path, "good", _GOOD), arguments=(None,))
    async with _watching(tmp_path, {"amd": [broken]}) as monitor:
        await _until(monitor, lambda: monitor.settled)
        assert "a bug in vramp: TypeError" in monitor.status[0].failures["vramp"]
    assert reported == ["telemetry ended"]
