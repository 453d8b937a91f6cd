"""Datasets: every format, every malformed line, and the same record for the same request."""

import gzip
import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.workload.data import DatasetReader, _index_folder, index_dataset
from loadgen.workload.records import parse_record
from loadgen.workload.work import record_for

DEEP = "[" * 100_000 + "]" * 100_000
TALK = {
    "conversations": [{"from": "human", "value": "Grüße an euch alle"}, {"from": "gpt", "value": "four and more of it"}]
}


def written(folder: Path, text: str, name: str = "d.json") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_sample_is_good() -> None:
    data = index_dataset("sample")
    assert (data.form, data.records, data.left_out, data.is_sample) == ("sharegpt", 64, 0, True)
    assert (data.isl, data.osl) == (217, 201)  # about those of the published runs, 215 and 198
    prompts = [DatasetReader(data).text(number).prompt for number in range(64)]
    assert len({prompt[:64] for prompt in prompts}) == 64  # none begins with a block that a prefix cache would know


@pytest.mark.parametrize("indent", [None, 1])
def test_sharegpt_by_number(tmp_path: Path, indent: int | None) -> None:
    prompts = [f"ä and some more {n}" for n in range(9)]
    talks = [{"conversations": [{"value": prompt}, TALK["conversations"][1]]} for prompt in prompts]
    path = written(tmp_path, json.dumps(talks, indent=indent, ensure_ascii=False))
    data = index_dataset(path)
    assert [DatasetReader(data).text(number).prompt for number in range(9)] == prompts
    content = Path(path).read_bytes()
    assert (data.bytes, data.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (data.osl, data.is_sample) == (5, False)


def said(*characters: int) -> list[dict[str, str]]:
    """Turns of so many characters, of which four are a token."""
    roles = ("gpt", "bing", "human")
    return [{"from": role, "value": "x" * count} for role, count in zip(roles, characters, strict=False)]


@pytest.mark.parametrize(
    ("turns", "kept"),
    [
        (said(16, 16), True),  # whoever speaks first, as in `vllm bench`
        (said(16, 16, 4), True),
        (said(), False),
        (said(4000), False),
        (said(12, 16), False),
        (said(16, 12), False),
        (said(4096, 4096), True),
        (said(4100, 16), False),
        (said(4096, 4100), False),
    ],
)
def test_sharegpt_is_filtered_as_published_runs_did(tmp_path: Path, turns: list[dict[str, str]], kept: bool) -> None:
    path = written(tmp_path, json.dumps([TALK, {"id": "a", "conversations": turns}]))
    data = index_dataset(path)
    assert (data.records, data.left_out) == ((2, 0) if kept else (1, 1))


def test_a_file_of_which_nothing_is_left_says_why(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps([{"conversations": said(4, 4)}]))
    with pytest.raises(ProfileError, match=r"no prompts in it.*left out of it: 1 conversation, fewer than two turns"):
        index_dataset(path)


def test_lines(tmp_path: Path) -> None:
    text = '{"prompt": "a"}\n\n{"messages": [{"role": "user", "content": "b"}], "output_tokens": 7}\n'
    data = index_dataset(written(tmp_path, text))
    assert (data.form, data.records, data.has_messages, data.osl) == ("jsonl", 2, True, None)
    assert DatasetReader(data).text(1).osl == 7
    assert DatasetReader(index_dataset(written(tmp_path, "one\ntwo\n", "d.txt"))).text(1).prompt == "two"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["no prompts"]),
        ("[]", ["no prompts"]),
        ('[{"conversations": 3}]', ["line 1", "conversations"]),
        (json.dumps([TALK], indent=1) + "x", []),
        ("[" + json.dumps(TALK) + ",\n{oops}]", ["line 2", "expected JSON"]),
        ("[" + json.dumps(TALK), ["cut off"]),
        ('{"prompt": "a"}\n{"prompt": ""}', ["line 2", "prompt"]),
        ('{"prompt": "a"}\n\n{"prompt": 3}', ["line 3", "expected"]),
        ('{"prompt": "a", "output_tokens": 0}', ["line 1", "at least 1"]),
        ('{"prompt": "a", "more": ' + DEEP + "}", ["nested too deeply"]),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "more": ' + DEEP + "}", ["nested too deeply"]),
        ("[" + DEEP + "]", ["nested too deeply"]),
        ("[" + "1" * 10_000 + "]", ["line 1", "expected"]),
        ('{"prompt": "a", "output_tokens": 99999999999999999999}', ["line 1", "at most 10000000"]),
    ],
)
def test_malformed_data_says_where_and_what(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    if not words:
        assert index_dataset(path).records == 1
        return
    with pytest.raises(ProfileError) as caught:
        index_dataset(path)
    assert all(word in str(caught.value) for word in [path, *words])


def test_what_is_no_file_that_can_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "packed").write_bytes(gzip.compress(b'{"prompt": "a"}'))
    for name, words in {"none": "cannot be read", "pipe": "not a file", ".": "not a file", "packed": "gunzip"}.items():
        with pytest.raises(ProfileError, match=words):
            index_dataset(str(tmp_path / name))
    with pytest.raises(ProfileError, match="no file can have this name"):
        index_dataset("\0")


def test_no_room_for_the_index(tmp_path: Path) -> None:
    data, folder = tmp_path / "data.txt", _index_folder()
    # Indexes are numbered by what the folder holds, this one included.
    index = folder / str(len(list(folder.iterdir())) + 1)
    data.write_text("a\n" * 100_000)
    index.symlink_to("/dev/full")
    with pytest.raises(ProfileError, match="no room for its index"):
        index_dataset(str(data))
    index.unlink()


@given(st.binary(max_size=60), st.sampled_from(["sharegpt", "jsonl", "text"]))
def test_any_bytes_are_a_record_or_a_value_error(raw: bytes, form: str) -> None:
    try:
        parse_record(raw, form)  # type: ignore[arg-type]
    except ValueError:
        return


@given(st.integers(0, 2**40), st.integers(0, 4095), st.integers(1, 200))
def test_every_record_once_before_any_again(seed: int, stage: int, records: int) -> None:
    assert sorted(record_for(seed, stage, index, records) for index in range(records)) == list(range(records))
