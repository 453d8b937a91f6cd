"""`vramp monitor` as scripts see it: beside a vramp that drives the same engine, and on what cannot be watched."""

import json
import signal
from pathlib import Path

import msgspec
import pytest

from loadgen.metrics.result import Result
from tests.engines import NOBODY, Simulator
from tests.tui.cli.test_main import SMALL, start, wait_for
from tui.cli.__main__ import main
from tui.cli.monitor import _document, _parser
from tui.cli.options import INTERRUPTED, profile_from


def test_it_sees_the_load_that_another_vramp_sends(engine: Simulator, tmp_path: Path) -> None:
    driver = start(tmp_path, "run", "--url", engine.url, "--concurrency", "4", "--duration", "1m", *SMALL)
    path = tmp_path / "seen.json"
    try:
        wait_for(driver, "held 4")
        watching = start(tmp_path, "monitor", engine.url, "--duration", "1m", "--every", "2s", "--json", str(path))
        try:
            for _ in range(3):  # lines are 2 s apart, as stages are: two of these are whole by then
                wait_for(watching, "no load; others: ")
        finally:
            watching.send_signal(signal.SIGINT)
            _, told = watching.communicate()
    finally:
        driver.send_signal(signal.SIGINT)
        driver.communicate()
    assert watching.returncode == INTERRUPTED, told
    seen = json.loads(path.read_text())
    assert seen["kind"] == "monitor"
    whole = seen["stages"][:2]
    assert [stage["label"] for stage in whole] == ["no load", "no load"]
    for stage in whole:
        assert stage["requests"]["sent"] == 0
        assert stage["engine"]["generation_tokens"] > 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--duration", "1s", NOBODY], 3, "nobody listens there"),
        (["--duration", "1s", "ftp://x"], 2, "url must look like http://host:port"),
        (["--duration", "1s", NOBODY, "--server", "simulator"], 2, "either a URL"),
        (["--duration", "1s", "--variant", "fast"], 2, "--variant is one of a profile's"),
        (["--every", "0s"], 2, "plan.every"),
        (["--telemetry", "sim"], 2, 'telemetry "sim" needs the simulator'),
    ],
)
def test_mistakes_have_a_message_and_an_exit_code(
    words: list[str],
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["monitor", *words])
    assert ended.value.code == code
    assert told in capfd.readouterr().err


def test_a_profile_brings_its_server_and_what_it_would_send_but_no_load() -> None:
    options = _parser().parse_args(["--server", "simulator", "--duration", "1m", "--every", "10s"])
    document, where = _document(options)
    parts = profile_from(document, where, options)
    assert parts.server.engine == "simulator"
    assert (parts.load.concurrency, parts.load.rate, parts.plan.every) == ([0], [], 10.0)


def test_for_so_long_with_its_figures_on_a_port(
    engine: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["monitor", engine.url, "--duration", "1s", "--metrics-port", "0", "--json", "o.json"])
    told = capfd.readouterr().err
    assert ended.value.code == 0, told
    assert "metrics: http://127.0.0.1:" in told
    assert msgspec.json.decode((tmp_path / "o.json").read_bytes(), type=Result).kind == "monitor"
    assert engine.truth()["requests"]["received"] == 0
