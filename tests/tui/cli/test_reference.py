"""`vramp reference`: figures of others as a part of a profile."""

import json
import subprocess
import tomllib
from functools import partial
from pathlib import Path

import pytest

from loadgen.profile.document import build_profile
from tests.store.foreign.test_read import FILES, NAMES
from tests.tui.cli.commands import exit_code

vramp = partial(exit_code, "reference")
PROFILE = '[server]\nengine = "attach"\nurl = "http://127.0.0.1:1"\nmodel = "some/model"\n'


def appended(text: str) -> dict[str, object]:
    """The table after it was appended to a profile, which is still valid."""
    document = tomllib.loads(PROFILE + text)
    build_profile({"name": "x"} | document, where="x")
    found = document["reference"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_format_becomes_a_reference_of_a_profile(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp(str(FILES / name)) == 0
    found = appended(capsys.readouterr().out)
    assert isinstance(found["points"], list) and found["points"][0]["figures"]["output_tokens_per_s"] > 0
    assert isinstance(found["notes"], list) and any(note.startswith("ttft: ") for note in found["notes"])


def test_the_figures_of_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert vramp(str(FILES / "inferencex_rows.json"), "--where", "conc=32", "--where", "is_multinode=false") == 0
    captured = capsys.readouterr()
    found = appended(captured.out)
    assert captured.err == "1 load with figures, measured by InferenceX\n"
    assert found["system"] == {
        "model": "some/model",
        "image": "vllm/vllm-openai-rocm:v0.32.0",
        "gpu": "MI300X",
        "gpus": 8,
    }
    (point,) = found["points"]  # type: ignore[misc]
    assert (point["concurrency"], point["isl"], point["osl"]) == (32, 512, 128)  # type: ignore[has-type]
    figures = point["figures"]  # type: ignore[has-type]
    assert (figures["output_tokens_per_s"], figures["ttft_p50_ms"], figures["tpot_mean_ms"]) == (2048.0, 62.25, 10.5)


def test_the_commit_of_a_checkout_and_a_source_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.json"
    rows.write_bytes((FILES / "inferencex_rows.json").read_bytes())
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "rows"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert vramp(str(rows)) == 0
    assert str(appended(capsys.readouterr().out)["source"]).startswith(f"{rows} at commit {head}, sha256 ")
    assert vramp(str(rows), "--cite", "a talk") == 0
    assert appended(capsys.readouterr().out)["source"] == "a talk"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["none.json"], 2, "none.json: cannot be read: No such file or directory"),
        (["words.json"], 2, "words.json: not a file of vllm bench serve"),
        (["half.json"], 2, "half.json: not a file of vllm bench serve"),
        (["two.json"], 2, "rows of several configurations: hw is"),
        (["two.json", "--where", "hw=h200"], 2, "--where hw=h200: no record has this; hw is b200, mi300x-amd_0"),
        (["two.json", "--where", "hw"], 2, "--where hw: expected KEY=VALUE"),
        (["ramp.json"], 2, "ramp.json: no load with a number of streams or a rate, and figures"),
        (["one.json", "--out", "/dev/full"], 1, "/dev/full: cannot be written: No space left on device"),
        (["http://127.0.0.1:1/rows"], 2, "expected https"),
    ],
)
def test_what_cannot_be_one_is_said(
    words: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (FILES / "inferencex_rows.json").read_text()
    one, other = json.loads(text)
    ramp = json.loads((FILES / "vllm_bench_0.6.json").read_text()) | {"ramp_up_strategy": "linear"}
    files = {"words": "words", "half": text[:900], "one": json.dumps(one), "ramp": json.dumps(ramp)}
    for name, content in (files | {"two": json.dumps([one, other | {"hw": "b200"}])}).items():
        Path(f"{name}.json").write_text(content)
    assert vramp(*words) == code
    assert message in capsys.readouterr().err


def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tui.cli.importing._MAX_REFERENCE_BYTES", 1 << 20)
    with (tmp_path / "rows.json").open("wb") as file:
        file.truncate(2 << 30)
    assert vramp(str(tmp_path / "rows.json")) == 2
    assert "larger than 1 MiB" in capsys.readouterr().err
