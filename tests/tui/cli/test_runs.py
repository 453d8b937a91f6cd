"""`vramp runs`: the list, its filters, trends, and exit codes."""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest

from loadgen.store.runs import write_result
from tests.metrics.served import run_of, served
from tests.tui.cli.commands import exit_code

vramp = partial(exit_code, "runs")
VERSIONS = ("0.30.0", "0.30.0", "0.31.0", "0.31.2+rocm", "0.310.0")


@pytest.fixture(autouse=True)
def five_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for number, version in enumerate(VERSIONS):
        environment = {"engine": "vllm", "model": "openai/gpt-oss-120b", "vllm_version": version, "cpu": "AMD EPYC"}
        result = msgspec.structs.replace(
            run_of(served(number, seconds=5), environment=environment),
            started_at=f"2026-01-0{number + 1}T00:00:00Z",
            finished_at=f"2026-01-0{number + 1}T00:01:00Z",
            profile={"name": "first" if number < 4 else "other"},
        )
        folder = Path(f"runs/2026010{number + 1}T000000Z-first")
        folder.mkdir(parents=True)
        write_result(result, folder / "result.json")


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[int]:
    """The days of the runs that are listed."""
    assert vramp(*words) == 0
    return [int(line[8:10]) for line in capsys.readouterr().out.splitlines() if line.startswith("2026")]


def test_runs_are_listed_newest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == listed(capsys, "runs") == listed(capsys, ".") == [5, 4, 3, 2, 1]
    assert vramp("--last", "2") == 0
    out = capsys.readouterr().out
    assert "runs/20260105T000000Z-first" in out and "3 older ones" in out


def test_filters_take_parts_of_names_and_beginnings_of_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys, "--profile", "OTH") == [5]
    assert listed(capsys, "--model", "gpt-oss", "--box", "epyc", "--vllm", "0.31") == [4, 3]
    assert listed(capsys, "--vllm", "0.31.2") == [4]
    assert vramp("--model", "llama") == 1
    assert "no run in or below it that the filters let through" in capsys.readouterr().err


def test_a_trend_as_text_json_and_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert vramp("--trend", "output_tok_s", "--since", "0.31", "--load", "16") == 0
    out = capsys.readouterr().out
    assert "output tok/s at conc 16, ISL 512, OSL 128" in out and "since 0.31" in out and out.count("Z-first") == 4
    assert vramp("--trend", "ttft_p99", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "vramp.runs/1" and len(document["runs"]) == 5
    (trend,) = document["trends"]
    assert [one["version"] for one in trend["versions"]] == ["0.30.0", "0.31.0", "0.31.2+rocm"]
    assert vramp("--trend", "ttft_p99", "--html", "--out", "page.html") == 0
    page = Path("page.html").read_text()
    assert "trend-0" in page and "TTFT p99, ms" in page and "runs/20260105T000000Z-first" in page


def test_what_is_not_there_or_no_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp("nowhere") == 1
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert vramp("--trend", "ttft_p99", "--since", "new") == 2
    assert "--since new: not a version" in capsys.readouterr().err
    assert vramp("--since", "0.31") == 2
    assert vramp("--trend", "goodput") == 1
    assert vramp("--out", "/dev/full") == 1
    assert "/dev/full: cannot be written: No space left on device" in capsys.readouterr().err
