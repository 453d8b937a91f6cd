"""A canary in every input that may hold a secret; then every byte that vramp has written or shown is looked through.

The server (`canary_server.py`) repeats all that it was sent in its log, and its answers repeat the API key.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread

import pytest

from loadgen.masking import learn
from loadgen.places import named_mode
from loadgen.run.remote import SOCKET
from loadgen.run.replay import Replay
from loadgen.store.journal import JOURNAL
from loadgen.telemetry.examine import Pace
from tests.server.fakes import wait_until
from tests.tui.cli.test_terminal import FLOWING, cockpit, journal_has
from tui.app import Cockpit
from tui.cli.__main__ import main
from tui.screens.cockpit import CockpitScreen

IN_ENVIRONMENT = {
    "HF_TOKEN": "canary-token",
    "GITHUB_PAT": "canary-pat",
    "DB_PWD": "canary-pwd",
    "AWS_SECRET_ACCESS_KEY": "canary/with+signs=",
    "SERVICE_LOGIN": "canary-api-key",  # no secret by its name, but by what the profile makes of it
    "HTTPS_PROXY": "http://user:canary-proxy@127.0.0.1:9/",
}
IN_PROFILE = {"env": 'canary "quoted" \\ key', "nested": "canary-nested", "json": "canary-json", "body": "canary-body"}
IN_OVERRIDES = {"NPM_TOKEN": "canary-override"}
PLANTED = [*IN_ENVIRONMENT.values(), *IN_PROFILE.values(), *IN_OVERRIDES.values()]
PROFILE = f"""
[server]
engine = "vllm"
model = "m"
command = "COMMAND"
api_key_env = "SERVICE_LOGIN"
env.WANDB_API_KEY = {json.dumps(IN_PROFILE["env"])}
[server.args]
api-key = "canary-api-key"
kv-transfer-config = {{kv_connector = "C", password = "{IN_PROFILE["nested"]}"}}
override-generation-config = '{{"extra": [{{"client_secret": "{IN_PROFILE["json"]}"}}]}}'
[load]
isl = 16
osl = 8
workers = 1
concurrency = 2
requests = 12
extra_body = {{router = {{api_key = "{IN_PROFILE["body"]}"}}}}
[variants.dies.server.env]
GIVE_UP = "1"
"""
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class Shown:
    """What was written and shown, by where."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts: dict[str, bytes] = {}

    def vramp(self, *words: str) -> int:
        """Call the command line; both of its streams are kept."""
        with (
            TemporaryFile("w+") as said,
            redirect_stdout(said),
            redirect_stderr(said),
            pytest.raises(SystemExit) as ended,
        ):
            try:
                main(words)
            finally:
                said.seek(0)
                self.texts[f"vramp {' '.join(words)}"] = said.read().encode()
        assert isinstance(ended.value.code, int)
        return ended.value.code

    def places(self) -> Iterator[tuple[str, bytes]]:
        yield from self.texts.items()
        for path in self.folder.rglob("*"):
            yield "the name of a file", str(path).encode()
            if path.is_file():
                yield str(path.relative_to(self.folder)), path.read_bytes()

    def found(self, secret: str) -> list[str]:
        """Where it stands, as it is or as JSON has it, each place with what is around it."""
        forms = {secret.encode(), json.dumps(secret)[1:-1].encode()}
        return [
            f"{place}: ...{text[max(0, text.index(form) - 60) : text.index(form) + 60]!r}..."
            for place, text in self.places()
            for form in forms
            if form in text
        ]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder, inputs = tmp_path_factory.mktemp("box"), tmp_path_factory.mktemp("inputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in IN_ENVIRONMENT.items():
            patch.setenv(name, value)
        for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(folder / name))
        patch.setattr("tui.cli.box.DUMP_PACE", Pace(watch_s=0.1, interval_s=0.05, open_s=20))
        learn(os.environ)  # as at the start of a process
        script = inputs / "vllm"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("canary_server.py")} "$@"\n')
        script.chmod(0o755)
        profile = inputs / "canary.toml"
        profile.write_text(PROFILE.replace("COMMAND", str(script)))
        shown = Shown(folder)
        _interactive(shown, str(profile))
        _commands(shown, str(profile))
        yield shown


def _interactive(shown: Shown, profile: str) -> None:
    """A run in the cockpit, with a watcher, and each of its views."""
    overrides = [f"--set=server.env.{name}={value}" for name, value in IN_OVERRIDES.items()]
    words = [sys.executable, "-m", "tui.cli", profile, "--force", "--records", "--json", "out.json", *overrides]
    with cockpit(shown.folder, 200, 60, command=words) as terminal:
        terminal.read_until(FLOWING)
        (folder,) = shown.folder.glob("runs/*")
        watcher = Thread(target=lambda: shown.texts.update(watcher=_watched(folder)))
        watcher.start()
        for key in b"123456789d":
            terminal.press(bytes([key]))
        wait_until(lambda: journal_has(shown.folder, "the plan is done") or journal_has(shown.folder, "StageEnded"))
        terminal.press(b"q")
        terminal.read_until(b"A run is live")
        terminal.press(b"f")
        terminal.read_rest()
        terminal.wait()
        shown.texts["the cockpit"] = _COLOURS.sub(b"", terminal.seen)
    watcher.join()


def _watched(folder: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as watcher:
        watcher.connect(os.path.relpath(folder / SOCKET))
        watcher.sendall(b'{"steers":false}\n')
        return b"".join(iter(lambda: watcher.recv(1 << 20), b""))


def _commands(shown: Shown, profile: str) -> None:
    """Everything else that there is on the command line."""
    for form in ((), ("--markdown",), ("--csv",), ("--html",), ("--vllm-json",)):
        assert shown.vramp("report", "last", *form) == 0
    assert shown.vramp("baseline", "save", "before", "last") == 0
    assert shown.vramp("baseline", "show", "before") == 0
    assert shown.vramp("compare", "before", "last", "--json") == 0
    assert shown.vramp("recover", "last", "--force") == 0
    assert shown.vramp("sweep", profile, "--variants", "dies", "--force", "--json", "sweep.json") != 0
    shown.vramp("check", profile)
    shown.vramp("check", profile, "--json", "--installation", "0.32.0")
    assert shown.vramp("doctor", "--telemetry", "sim", "--dump", "capture.jsonl") == 0
    assert shown.vramp("stop", "--list") == 0
    # What is wrong is repeated in the message.
    for key in ("server.env.NPM_TOKEN.a", "server.args.api-key", "nonsense.password"):
        shown.vramp("run", profile, "--set", f"{key}={IN_OVERRIDES['NPM_TOKEN']}", "--set", "load.osl=wrong")
    assert shown.vramp("run", profile, "--api-key", IN_OVERRIDES["NPM_TOKEN"]) == 2
    assert shown.vramp("run", "--url", f"http://user:{IN_OVERRIDES['NPM_TOKEN']}@127.0.0.1:9/?token=x") != 0


# By number: a server inherits the name of the running test, and repeats its environment.
@pytest.mark.parametrize("secret", PLANTED, ids=range(len(PLANTED)))
def test_no_secret_is_written_or_shown(shown: Shown, secret: str) -> None:
    assert shown.found(secret) == []


def test_the_canaries_were_there_to_be_found(shown: Shown) -> None:
    """What is masked stands where the secrets stood: in the log, the answers, the profile and the command."""
    (folder, *_) = sorted(shown.folder.glob("runs/*canary/"))
    log, result = (folder / "server.log").read_text(), json.loads((folder / "result.json").read_text())
    assert log.count("***") >= 2 * len(IN_ENVIRONMENT)
    assert any("***" in message for message in result["stages"][0]["requests"]["messages"]["http_5xx"])
    assert result["profile"]["server"]["args"]["kv-transfer-config"] == {"kv_connector": "C", "password": "***"}
    assert result["environment"]["server_env"]["NPM_TOKEN"] == "***"
    assert result["profile"]["server"]["api_key_env"] == "SERVICE_LOGIN"
    assert b"***" in shown.texts["watcher"]
    assert b"***" in shown.texts["the cockpit"]
    (died,) = shown.folder.glob("runs/*sweep/dies.json")
    assert "cannot go on: {" in json.loads(died.read_text())["reason"]


def test_nothing_is_for_the_eyes_of_others(shown: Shown) -> None:
    """Files in the folder of a run; what was named on the command line is as the operator's umask has it."""
    for folder in shown.folder.glob("runs/*"):
        assert folder.stat().st_mode & 0o777 == 0o700
    (folder, *_) = sorted(shown.folder.glob("runs/*canary/"))
    private = ["histograms.hlog", JOURNAL, "records.jsonl", "report.html", "result.json", "server.log", "summary.json"]
    assert sorted(path.name for path in folder.iterdir()) == private
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600] * len(private)
    assert Path(shown.folder / "out.json").stat().st_mode & 0o777 == named_mode()


async def test_a_replay_shows_none(shown: Shown) -> None:
    (folder, *_) = sorted(shown.folder.glob("runs/*canary/"))
    app = Cockpit(CockpitScreen(Replay(folder / JOURNAL, 100.0), watching=True))
    async with app.run_test(size=(200, 60)) as pilot:
        for key in "160":
            await pilot.press(key)
            await pilot.pause()
            assert "canary-" not in app.export_screenshot()
        await pilot.press("q")
