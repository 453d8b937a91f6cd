"""`vramp report` as scripts see it: data on stdout, files where they are asked for, words on stderr."""

import csv
import io
import json
import stat
from functools import partial
from pathlib import Path

import msgspec
import pytest

from loadgen.schema.result import StageResult
from loadgen.schema.summary import RunSummary
from loadgen.store.files import RowsFormat, open_rows
from loadgen.store.runs import write_result
from tests.report.test_assessment import at
from tests.report.test_text import result
from tests.store.test_stream_rows import FAILED, ROW
from tests.tui.cli.commands import exit_code

NAME = "20260101T000000Z-box"
report = partial(exit_code, "report")


def write(path: str, *stages: StageResult) -> None:
    write_result(msgspec.structs.replace(result(*stages), started_at="2026-01-01T00:00:00Z"), Path(path))


@pytest.fixture(autouse=True)
def a_run() -> None:
    write(f"runs/{NAME}/result.json", at(2, 500.0), at(4, 900.0, index=1))


def test_the_table_by_any_name_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    texts = set()
    for word in ("last", NAME, NAME[:8], f"runs/{NAME}", f"runs/{NAME}/result.json"):
        assert report(word) == 0
        texts.add(capsys.readouterr().out)
    (text,) = texts
    assert text.count("\nTTFT ") == 2
    assert text.splitlines()[-1].startswith("not checked: ")


def test_markdown_and_csv_are_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("last", "--markdown") == 0
    assert capsys.readouterr().out.startswith("### ")
    assert report("last", f"runs/{NAME}", "--csv") == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 4
    assert report("last", "--markdown", "--out", "box.md") == 0
    assert capsys.readouterr().out == ""
    assert Path("box.md").read_text().startswith("### ")


def test_json_is_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("last", "--json") == 0
    text = capsys.readouterr().out
    summary = msgspec.json.decode(text, type=RunSummary)
    assert [stage.throughput.output_tokens_per_s for stage in summary.stages] == [500.0, 900.0]
    Path("s.json").write_text(text)
    assert report("s.json") == 1
    assert "s.json: the summary of a run; its figures in full are in its result.json" in capsys.readouterr().err


def test_html_lies_next_to_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("last", "--html") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"report: runs/{NAME}/report.html\n"
    page = Path(f"runs/{NAME}/report.html").read_text()
    assert page.startswith("<!doctype html>")
    assert report(f"runs/{NAME}/result.json", "--html", "--out", "-") == 0
    assert capsys.readouterr().out == page
    Path(f"runs/{NAME}/result.json").rename("mine.json")
    assert report("mine.json", "--html") == 0
    assert capsys.readouterr().err == "report: mine-report.html\n"


def test_the_formats_of_others_go_to_stdout_or_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("last", "--llm-d") == 0
    assert [one["version"] for one in json.loads(capsys.readouterr().out)] == ["0.2", "0.2"]
    assert report("last", "--llm-d", "--out", "reports") == 0
    assert [path.name for path in sorted(Path("reports").iterdir())] == [
        f"benchmark_report_v0.2-r-{number}.json" for number in (1, 2)
    ]
    assert report("last", "--inferencex", "--out", "rows.json") == 0
    assert [row["conc"] for row in json.loads(Path("rows.json").read_text())] == [2, 4]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_detailed_has_each_request_of_the_records(form: RowsFormat, capsys: pytest.CaptureFixture[str]) -> None:
    rows = open_rows(Path(f"runs/{NAME}"), form)
    later = msgspec.structs.replace(ROW, stage=1, first_wave=False, warmup=False)
    rows.write(0, [later, msgspec.structs.replace(later, warmup=True)], None)
    rows.write(0, [msgspec.structs.replace(FAILED, stage=1, warmup=False), later], None)
    rows.close()
    assert report("last", "--vllm-json", "--detailed") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["latencies"] == first["successes"] == []
    assert second["successes"] == [True, False, True]
    assert (second["latencies"], second["ttfts"]) == ([1.0, 0.0, 1.0], [0.5, 0.0, 0.5])
    assert second["errors"] == ["", "failed:reset", ""] and second["start_times"][1] == 0.0
    assert second["output_lens"] == [ROW.output_tokens, 0, ROW.output_tokens]


def test_a_damaged_record_is_named_and_a_torn_one_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    records = Path(f"runs/{NAME}/records.jsonl")
    records.write_text('{"stage": 0, "outcome": "comp')
    assert report("last", "--vllm-json", "--detailed") == 0
    records.write_text('{"stage": "0"}\n')
    assert report("last", "--vllm-json", "--detailed") == 1
    assert "records.jsonl: row 1: " in capsys.readouterr().err


def test_vllm_json_is_an_object_a_list_or_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("last", "--vllm-json") == 0
    assert [one["max_concurrency"] for one in json.loads(capsys.readouterr().out)] == [2, 4]
    assert report("last", "--vllm-json", "--out", "out/there") == 0
    captured = capsys.readouterr()
    files = sorted(Path("out/there").iterdir())
    assert captured.out == "" and all(str(file) in captured.err for file in files)
    assert [json.loads(file.read_text())["completed"] for file in files] == [80, 80]
    write("one.json", at(2, 500.0))
    assert report("one.json", "--vllm-json") == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 80


def test_a_file_is_written_whole_and_what_has_a_name_that_nobody_chose_is_replaced(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("theirs")
    page = Path(f"runs/{NAME}/report.html")
    page.symlink_to(victim)
    kept = Path("kept.md")
    kept.write_text("x" * 100_000)
    kept.chmod(0o640)
    assert report("last", "--html") == report("last", "--markdown", "--out", str(kept)) == 0
    assert victim.read_text() == "theirs"
    assert not page.is_symlink() and stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "xx" not in kept.read_text() and stat.S_IMODE(kept.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere"], 1, "nowhere: no such file, folder"),
        (["last", "last"], 2, "takes one run; --csv takes several"),
        (["last", "--out", "/proc/x/y"], 1, "/proc/x/y: cannot be written"),
        (["last", "--html", "--out", "runs"], 1, "runs: cannot be written: Is a directory"),
        (["last", "--vllm-json", "--out", f"runs/{NAME}/result.json"], 1, "must be a folder"),
        (["last", "--llm-d", "--out", f"runs/{NAME}/result.json"], 1, "must be a folder"),
        (["last", "--vllm-json", "--detailed"], 1, "no records of streams: a run keeps them with --records"),
        (["last", "--markdown", "--detailed"], 2, "--detailed goes with --vllm-json"),
        (["empty.json", "--inferencex"], 1, "no stage of a closed loop was measured"),
        (["last", "--inferencex", "--out", "/dev/full"], 1, "cannot be written: No space left on device"),
        (["empty.json", "--vllm-json"], 1, "no stage in which a request was sent"),
        (["empty.json", "--csv"], 1, "no stage sent requests"),
        (["last", "--html", "--csv"], 2, "not allowed with argument"),
        ([], 2, "the following arguments are required: RUN"),
    ],
)
def test_what_cannot_be_done_is_reported(
    words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("empty.json")
    assert report(*words) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
