import asyncio
import os
import select
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from loadgen.errors import ServerError
from loadgen.server.vllm.installation import (
    _RECORDED,
    FlagInfo,
    Installation,
    ask_installation,
    newest_recorded,
    python_of,
    record_of,
    recorded_installation,
    recorded_versions,
)
from tests.scripts import executable

ENVS = "environment_variables = {'VLLM_B': None, 'VLLM_A': None}\n"
SERVE = """
import argparse, json
FlexibleArgumentParser = argparse.ArgumentParser
print("a line of log without an end", end="")

class ServeSubcommand:
    def subparser_init(self, parsers):
        parser = parsers.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument("--enable-lora", action=argparse.BooleanOptionalAction)
        # As vLLM 0.33 hides a spelling from the help that the parser still accepts.
        hidden = parser.add_argument("--enable-dbo", action=argparse.BooleanOptionalAction)
        hidden.option_strings = ["--enable-dbo"]
        parser.add_argument("--headless", action="store_true")
        parser.add_argument("--tensor-parallel-size", "-tp", type=int)
        parser.add_argument("--middleware", action="append")
        parser.add_argument("--lora-modules", nargs="+")
        parser.add_argument("--hf-token", nargs="?", const=True)
        parser.add_argument("--hf-overrides", type=json.loads)
        parser.add_argument("--device-ids", type=lambda text: text.split(","))
        parser.add_argument("--rank", type=int, choices=[1, 8])
        parser.add_argument("--backend", type=lambda text: text.lower().replace("-", "_"), choices=["a_b", "c"])
        parser.add_argument("--level", choices=["debug", "info"])
        parser.add_argument("-q")
        return parser
"""


class FakeEnvironment:
    """A Python environment with a vllm that is only a parser; its python notes that it was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.packages = folder / "lib/python3.11/site-packages"
        self.python = folder / "bin/python3"
        self.sources = folder / "src"
        self.runs = folder / "runs"
        self.write("vllm/__init__.py", "__version__ = '9.1'\nprint('INFO: noise')\n")
        self.write("vllm/envs.py", ENVS)
        self.write("vllm/entrypoints/cli/serve.py", SERVE)
        (self.packages / "vllm-9.1+fake.dist-info").mkdir()
        self.executable(
            "python3",
            f'#!/bin/sh\necho "$http_proxy" >> {self.runs}\n'
            f'PYTHONPATH={self.packages}:{self.sources} exec {sys.executable} "$@"\n',
        )

    def write(self, name: str, text: str) -> None:
        path = self.packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def executable(self, name: str, text: str) -> Path:
        return executable(self.folder / "bin" / name, text)

    def requested(self) -> int:
        return len(self.runs.read_text().splitlines()) if self.runs.exists() else 0


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEnvironment:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # the real one may have packages
    return FakeEnvironment(tmp_path / "env")


async def test_its_own_python_describes_the_real_parser(environment: FakeEnvironment, tmp_path: Path) -> None:
    known = await ask_installation(environment.python, cache=tmp_path / "cache")
    assert known.version == "9.1"
    assert known.variables == ["VLLM_A", "VLLM_B"]
    assert known.flags == {
        "help": FlagInfo(names=["-h", "--help"], takes="nothing"),
        "enable-lora": FlagInfo(names=["--enable-lora", "--no-enable-lora"], takes="nothing"),
        "enable-dbo": FlagInfo(names=["--enable-dbo", "--no-enable-dbo"], takes="nothing"),
        "headless": FlagInfo(names=["--headless"], takes="nothing"),
        "tensor-parallel-size": FlagInfo(names=["--tensor-parallel-size", "-tp"]),
        "middleware": FlagInfo(names=["--middleware"], repeats=True),
        "lora-modules": FlagInfo(names=["--lora-modules"], takes="several"),
        "hf-token": FlagInfo(names=["--hf-token"], takes="optional"),
        "hf-overrides": FlagInfo(names=["--hf-overrides"], json=True),
        "device-ids": FlagInfo(names=["--device-ids"]),
        "rank": FlagInfo(names=["--rank"], choices=["1", "8"]),
        "backend": FlagInfo(names=["--backend"], choices=["a_b", "c"], any_case=True),
        "level": FlagInfo(names=["--level"], choices=["debug", "info"]),
    }


async def test_it_is_asked_once_until_it_changes(environment: FakeEnvironment, tmp_path: Path) -> None:
    first = await ask_installation(environment.python, cache=tmp_path / "cache")
    assert await ask_installation(environment.python, cache=tmp_path / "cache") == first
    assert environment.requested() == 1
    os.utime(environment.packages / "vllm/__init__.py", ns=(1, 1))
    await ask_installation(environment.python, cache=tmp_path / "cache")
    assert environment.requested() == 2


@pytest.mark.parametrize("left", [b"", b'{"version": "9.1", "fla', b"\xff", b'{"version": 9}'])
async def test_a_spoilt_cache_is_asked_anew(environment: FakeEnvironment, tmp_path: Path, left: bytes) -> None:
    known = await ask_installation(environment.python, cache=tmp_path / "cache")
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_bytes(left)
    assert await ask_installation(environment.python, cache=tmp_path / "cache") == known
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [entry.name]
    assert await ask_installation(environment.python, cache=tmp_path / "cache") == known
    assert environment.requested() == 2


async def test_a_cache_that_takes_nothing_costs_only_time(environment: FakeEnvironment) -> None:
    installation = await ask_installation(environment.python, cache=Path("/dev/null/cache"))
    assert installation.version


async def test_an_editable_installation_is_asked_each_time(environment: FakeEnvironment, tmp_path: Path) -> None:
    environment.sources.mkdir()
    (environment.packages / "vllm").rename(environment.sources / "vllm")
    for requested in (1, 2):
        assert (await ask_installation(environment.python, cache=tmp_path / "cache")).version == "9.1"
        assert environment.requested() == requested
    assert not (tmp_path / "cache").exists()


async def test_a_python_without_vllm(environment: FakeEnvironment, tmp_path: Path) -> None:
    shutil.rmtree(environment.packages)
    with pytest.raises(ServerError, match="could not be queried: ModuleNotFoundError: No module named 'vllm'"):
        await ask_installation(environment.python, cache=tmp_path / "cache")


async def test_an_answer_can_be_recorded(environment: FakeEnvironment, tmp_path: Path) -> None:
    known = await ask_installation(environment.python, cache=tmp_path)
    command = (sys.executable, "-m", "loadgen.server.vllm.installation", str(environment.python))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    recorded, _ = await process.communicate()
    assert msgspec.json.decode(recorded, type=Installation) == known
    assert len(recorded.splitlines()) == len(known.flags) + 6


async def test_it_is_asked_without_proxies(
    environment: FakeEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    await ask_installation(environment.python, cache=tmp_path / "cache")
    assert environment.runs.read_text() == "\n"


async def test_what_it_died_of_is_said(environment: FakeEnvironment, tmp_path: Path) -> None:
    environment.write("vllm/envs.py", "raise RuntimeError('Failed to infer \\x1b[31mdevice type')")
    with pytest.raises(ServerError, match="could not be queried: RuntimeError: Failed to infer device type"):
        await ask_installation(environment.python, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def silent(environment: FakeEnvironment, tmp_path: Path) -> FakeEnvironment:
    """One that writes a line to a named pipe, starts a child that keeps its output open, and says no more."""
    os.mkfifo(tmp_path / "begun")
    environment.write(
        "vllm/envs.py",
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open('{tmp_path}/begun', 'w').write(str(child.pid))\ntime.sleep(60)",
    )
    return environment


async def test_one_that_says_nothing_does_not_hold_up(silent: FakeEnvironment, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"did not describe its flags within 0\.1 s"):
        await ask_installation(silent.python, cache=tmp_path / "cache", timeout_s=0.1)


async def test_nothing_is_left_when_the_question_is_dropped(silent: FakeEnvironment, tmp_path: Path) -> None:
    question = asyncio.create_task(ask_installation(silent.python, cache=tmp_path / "cache"))
    child = os.pidfd_open(int(await asyncio.to_thread((tmp_path / "begun").read_text)))
    question.cancel()
    with pytest.raises(asyncio.CancelledError):
        await question
    ended, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert ended


async def test_no_python_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"python3: cannot be run .*: No such file"):
        await ask_installation(tmp_path / "python3", cache=tmp_path / "cache")


@pytest.mark.parametrize(
    "head",
    ["#!{python}\n", "#!{python} -sP\nimport x\n", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"],
)
def test_the_python_of_a_script(environment: FakeEnvironment, tmp_path: Path, head: str) -> None:
    script = executable(tmp_path / "vllm", head.format(python=environment.python))
    assert python_of(str(script)) == environment.python


def test_the_python_next_to_a_script_that_does_not_tell(environment: FakeEnvironment) -> None:
    script = environment.executable("vllm", "#!/bin/bash\nexec something\n")
    assert python_of(str(script)) == environment.python
    assert python_of(str(environment.folder)) == environment.python


def test_the_python_of_a_name_on_path(environment: FakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.executable("my-vllm", "#!/usr/bin/env python3\n")
    monkeypatch.setenv("PATH", str(environment.folder / "bin"))
    assert python_of("my-vllm") == environment.python


def test_an_unknown_python(tmp_path: Path) -> None:
    script = tmp_path / "vllm"
    script.write_bytes(b"\x7fELF")
    script.chmod(0o755)
    assert python_of(str(script)) is None
    assert python_of(str(tmp_path / "nothing")) is None
    script.write_text("#!/no/such/python3\n")
    assert python_of(str(script)) is None


def test_recorded_versions_are_complete() -> None:
    assert "0.32.0" in recorded_versions()
    for version in recorded_versions():
        known = recorded_installation(version)
        assert known.version == version
        assert (_RECORDED / f"{version}.json").read_text() == record_of(known)
        assert "max-model-len" in known.flags
        assert "VLLM_ROCM_USE_AITER" in known.variables


def test_0_32_0_as_recorded() -> None:
    known = recorded_installation("0.32.0+rocm")
    assert (len(known.flags), len(known.variables)) == (317, 316)
    assert sum(name.startswith("VLLM_ROCM_") for name in known.variables) == 34
    assert known.flags["compilation-config"].json
    assert known.flags["api-key"].takes == "several"
    assert known.flags["middleware"].repeats
    assert "fp8" in known.flags["kv-cache-dtype"].choices
    assert newest_recorded().version == recorded_versions()[-1]


def test_0_33_0_as_recorded() -> None:
    known = recorded_installation("0.33.0")
    assert (len(known.flags), len(known.variables)) == (321, 318)
    caching = ["--enable-prefix-caching", "--no-enable-prefix-caching", "--disable-prefix-caching"]
    assert known.flags["enable-prefix-caching"].names == caching
    assert known.flags["watchdog-config"].json


def test_a_version_that_is_not_recorded() -> None:
    with pytest.raises(ServerError, match=r"vLLM 0\.1\.4: its flags are not recorded; there are: .*0\.32\.0"):
        recorded_installation("0.1.4")
