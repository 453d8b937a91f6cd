"""What other programs may import: typed readers of a run's files, and the examples of the manual."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import loadgen
from loadgen import read_histograms, read_result, read_summary
from loadgen.errors import ResultError
from loadgen.record.summary import summary_of
from loadgen.store.recover import recover
from tests.journal import STARTED
from tests.store.test_recover import journal, stage

ROOT = Path(__file__).parents[2]
FOREIGN = ROOT / "tests" / "store" / "foreign" / "files"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two stages, with one TTFT of 20 ms a tick."""
    folder = tmp_path_factory.mktemp("library") / "runs" / "20260101T000000Z-r"
    folder.mkdir(parents=True)
    journal(folder, STARTED, *stage(0), *stage(1))
    recover(folder)
    return folder


def test_readers_take_a_folder_or_a_file(run: Path) -> None:
    result, summary, intervals = read_result(run), read_summary(run), read_histograms(run)
    assert result == read_result(str(run / "result.json"))
    assert summary == read_summary(run / "summary.json") == read_summary(run / "result.json") == summary_of(result)
    assert intervals == read_histograms(run / "histograms.hlog")
    assert [one.stage for one in intervals if one.latency == "ttft"] == [1, 2]
    assert [one.counts for one in intervals if one.latency == "ttft"] == [(4,), (4,)]
    (value_ms,) = intervals[0].values_ms
    assert value_ms == result.stages[0].latency_ms["ttft"].p50


def test_summary_of_a_run_without_one_and_of_another_tool(run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "result.json", tmp_path)
    assert read_summary(tmp_path) == read_summary(run)
    foreign = read_summary(FOREIGN / "vllm_bench_0.6.json")
    assert (foreign.measured_by, len(foreign.stages)) == ("vllm bench serve", 1)


@pytest.mark.parametrize("name", ["result.json", "summary.json", "histograms.hlog"])
@pytest.mark.parametrize("damage", ["gone", "empty", "cut off", "NaN", "text for a number", "binary"])
def test_damaged_files_raise_an_error_that_names_them(run: Path, tmp_path: Path, name: str, damage: str) -> None:
    path, data = tmp_path / f"{name}.damaged", (run / name).read_bytes()
    number = rb"(\"mean\":\s?)[0-9.]+" if name != "histograms.hlog" else rb"(Tag=ttft,)[0-9.]+"
    damaged = {
        "empty": b"",
        "cut off": data[: len(data) - 30],
        "NaN": re.sub(number, rb"\1NaN" if name != "histograms.hlog" else rb"\1x", data, count=1),
        "text for a number": re.sub(number, rb'\1"20"', data, count=1),
        "binary": bytes(range(256)) + data,
    }
    if damage != "gone":
        path.write_bytes(damaged[damage])
    read = {"result.json": read_result, "summary.json": read_summary, "histograms.hlog": read_histograms}[name]
    if name == "histograms.hlog" and damage in ("empty", "binary"):
        assert read(path) in ([], read_histograms(run))  # comments and lines of others are passed over
        return
    with pytest.raises(ResultError, match=re.escape(name)):
        read(path)


def test_a_run_without_its_result_says_what_became_of_it(run: Path, tmp_path: Path) -> None:
    for read in (read_result, read_summary):
        with pytest.raises(ResultError, match="there is no run in this folder"):
            read(tmp_path)
    shutil.copy(run / "journal.jsonl", tmp_path)
    with pytest.raises(ResultError, match=r"ended without writing its result; make it with `vramp recover"):
        read_result(tmp_path)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(ResultError, match=r"`vramp recover .*` rebuilds it from the journal"):
        read_summary(tmp_path)


def test_a_summary_of_a_newer_version_says_so(run: Path, tmp_path: Path) -> None:
    text = (run / "summary.json").read_text().replace("vramp.summary/1", "vramp.summary/2")
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ResultError, match=r"made by a newer vramp \(vramp.summary/2; this one reads vramp.summary/1"):
        read_summary(tmp_path)


def test_another_file_is_no_histogram_log(run: Path) -> None:
    with pytest.raises(ResultError, match=r"result\.json: not a histogram log of vramp"):
        read_histograms(run / "result.json")


def test_readers_are_all_that_is_public_and_are_imported_on_use() -> None:
    with pytest.raises(AttributeError, match="no attribute 'read_everything'"):
        _ = loadgen.read_everything  # type: ignore[attr-defined]
    code = "import sys, loadgen; print(len([name for name in sys.modules if name.startswith('loadgen')]))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "1\n"


@pytest.mark.parametrize("language", ["python", "sh"])
def test_examples_of_the_manual_run(run: Path, language: str) -> None:
    if language == "sh" and shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    manual = (ROOT / "docs" / "summary.md").read_text().partition("## In Python")[2]
    match = re.search(rf"```{language}\n(.*?)```", manual, re.DOTALL)
    assert match is not None
    command = [sys.executable, "-c"] if language == "python" else ["sh", "-euc"]
    folder = run.parents[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [*command, match[1]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert printed.returncode == 0, printed.stderr
    expected = {"python": ["latency_ms.ttft.p99", "20.0"], "sh": ["\t20", '"run_id"']}[language]
    assert [text for text in expected if text not in printed.stdout] == []
