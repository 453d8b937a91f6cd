"""Datasets: every format, every malformed line, and the same record for the same request."""

import gzip
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.workload import files
from loadgen.workload.data import DatasetReader, index_dataset
from loadgen.workload.files import array_records, index_folder
from loadgen.workload.records import parse_record
from loadgen.workload.work import record_for

NEWLINES = "\n" * 1_000_000  # no more of the file is read than shows what is wrong
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
    with pytest.raises(ProfileError, match=r"no prompts in it; left out: 1 record with a turn of fewer than 4 tok"):
        index_dataset(path)


LONG = "please tell me a long story about a river"
ANSWER = "once upon a time there was a river"
USER, ASSISTANT = {"role": "user", "content": LONG}, {"role": "assistant", "content": ANSWER}
HUMAN, GPT = {"from": "human", "value": LONG}, {"from": "gpt", "value": ANSWER}
SYSTEM = {"from": "system", "value": "be polite"}
PARTS = [{"type": "text", "text": "please tell me a long story"}, {"type": "text", "text": "about a river"}]
IMAGE = [*PARTS, {"type": "image_url", "image_url": {"url": "data:"}}]


def in_array(record: object) -> str:
    return json.dumps([record, record], indent=1)


def in_lines(record: object) -> str:
    return f"{json.dumps(record)}\n\n{json.dumps(record)}\n"


def with_bom(record: object) -> str:
    return "\ufeff" + in_lines(record).replace("\n", "\r\n")


@pytest.mark.parametrize("text_of", [in_array, in_lines, with_bom])
@pytest.mark.parametrize(
    ("record", "prompt", "messages", "osl"),
    [
        ({"prompt": LONG}, LONG, [], None),
        ({"prompt": LONG, "messages": None, "output_length": 7}, LONG, [], 7),
        ({"conversations": [HUMAN, GPT]}, LONG, [], 8),
        ({"conversation": [HUMAN, GPT, HUMAN], "output_tokens": 3}, LONG, [], 3),
        ({"conversations": [USER, ASSISTANT]}, LONG, [], 8),
        ({"conversations": [{"role": "user", "value": LONG}, GPT]}, LONG, [], 8),
        ({"conversations": [GPT, HUMAN]}, ANSWER, [], 10),
        ({"conversations": [{"from": "human", "value": PARTS}, GPT]}, "\n".join(each["text"] for each in PARTS), [], 8),
        (
            {"conversations": [SYSTEM, HUMAN, GPT]},
            f"be polite\n\n{LONG}",
            [("system", "be polite"), ("user", LONG)],
            8,
        ),
        ({"messages": [USER, ASSISTANT, USER]}, "", [("user", LONG), ("assistant", ANSWER), ("user", LONG)], None),
        ({"messages": [HUMAN, GPT]}, "", [("user", LONG), ("assistant", ANSWER)], None),
        ({"messages": [{"role": "user", "content": ["a", "b"]}]}, "", [("user", "a\nb")], None),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                    {"role": "tool", "content": "5", "tool_call_id": "1"},
                    USER,
                ]
            },
            "",
            [("user", LONG), ("user", LONG)],
            None,
        ),
    ],
)
def test_record_is_read_the_same_in_every_file_form(
    tmp_path: Path,
    text_of: Callable[[object], str],
    record: dict[str, object],
    prompt: str,
    messages: list[tuple[str, str]],
    osl: int | None,
) -> None:
    data = index_dataset(written(tmp_path, text_of(record)))
    assert (data.records, data.left_out, data.note) == (2, 0, None)
    found = DatasetReader(data).text(1)
    assert (found.prompt, [(each["role"], each["content"]) for each in found.messages]) == (prompt, messages)
    assert found.osl == osl
    assert data.has_messages == (not prompt)


@pytest.mark.parametrize("text_of", [in_array, in_lines])
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"conversations": [HUMAN, {"from": "gpt", "value": None}]}, "without text"),
        ({"conversations": [{"from": "human"}, GPT]}, "without text"),
        ({"conversations": None}, "with fewer than two turns"),
        ({"conversations": []}, "with fewer than two turns"),
        ({"conversations": [SYSTEM, HUMAN]}, "with fewer than two turns"),
        ({"conversations": [{"from": "human", "value": IMAGE}, GPT]}, "with images or other parts that are not text"),
        ({"messages": [{"role": "user", "content": IMAGE}]}, "with images or other parts that are not text"),
        ({"messages": [{"role": "assistant", "content": None}]}, "without text"),
        ({"messages": None}, "without text"),
        ({"prompt": None}, "without text"),
    ],
)
def test_record_without_a_prompt_is_left_out_and_counted(
    tmp_path: Path, text_of: Callable[[object], str], record: dict[str, object], reason: str
) -> None:
    path = written(tmp_path, text_of(record))
    with pytest.raises(ProfileError, match=f"no prompts in it; left out: 2 records {reason}$"):
        index_dataset(path)
    both = [record, {"prompt": LONG}]
    data = index_dataset(written(tmp_path, "\n".join(map(json.dumps, both)), "both.jsonl"))
    assert (data.records, data.left_out) == (1, 1)
    assert data.note == f"1 record; left out: 1 record {reason}"


def test_half_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    path = written(tmp_path, r'{"prompt": "a broken \ud83d emoji, and \ud83d\ude00"}')
    assert DatasetReader(index_dataset(path)).text(0).prompt == "a broken \ufffd emoji, and \N{GRINNING FACE}"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            json.dumps([{"conversations": [HUMAN, GPT]}] * 3)[:-20].encode(),
            "line 1: expected JSON; .*is the file cut off",
        ),
        (json.dumps([{"conversations": [HUMAN, GPT]}] * 3, indent=1)[:-20].encode(), "line 3.: .*is the file cut off"),
        (b'{"prompt": "a"}\n{"prompt": "b', "line 2: .*truncated"),
        ('{"prompt": "a"}\n{"prompt": "caf\u00e9"}'.encode("latin-1"), "line 2: expected UTF-8 text"),
        ('[{"prompt": "a"},\n{"prompt": "caf\u00e9"}]'.encode("latin-1"), "line 2: expected UTF-8 text"),
    ],
)
def test_cut_off_or_wrongly_encoded_file_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "d.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=rf"load\.data: {path}: {words}") as caught:
        index_dataset(str(path))
    assert "\n" not in str(caught.value)


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
        (json.dumps([TALK], indent=1) + "x", ["line 14", "nothing after the ]"]),
        (json.dumps([TALK]) + "\n\n[]", ["line 3", "nothing after the ]"]),
        (f"[{json.dumps(TALK)},\n,{json.dumps(TALK)}]", ["line 2", "expected JSON"]),
        (f"[,\n{json.dumps(TALK)}]", ["line 1", "expected JSON"]),
        (f"[{json.dumps(TALK)},\n]", ["line 2", "expected JSON"]),
        (f"[{json.dumps(TALK)}\n{json.dumps(TALK)}]", ["line 2", "expected a comma"]),
        (f"[{json.dumps(TALK)},,{json.dumps(TALK)}{NEWLINES}]", ["line 1", "expected JSON"]),
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
    data, folder = tmp_path / "data.txt", index_folder()
    # Indexes are numbered by what the folder holds, this one included.
    index = folder / str(len(list(folder.iterdir())) + 1)
    data.write_text("a\n" * 100_000)
    index.symlink_to("/dev/full")
    with pytest.raises(ProfileError, match="no room for its index"):
        index_dataset(str(data))
    index.unlink()


def in_array_of(text: bytes) -> list[bytes]:
    return [raw.content for raw in array_records("load.data", Path("d.json"), io.BytesIO(text))]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
RECORDS = st.lists(st.dictionaries(st.text(max_size=3), JSON, max_size=3), max_size=4)
LAYOUT = st.tuples(st.sampled_from([None, 0, 1]), st.booleans())


@given(RECORDS, LAYOUT, st.integers(1, 40))
def test_an_array_is_read_the_same_in_pieces_of_any_size(
    records: list[object], layout: tuple[int | None, bool], piece: int
) -> None:
    text = json.dumps(records, indent=layout[0], ensure_ascii=layout[1]) + "\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_CHUNK_BYTES", piece)
        found = in_array_of(text.encode(errors="surrogatepass" if layout[1] else "replace"))
    assert repr([*map(json.loads, found)]) == repr(json.loads(text))  # NaN is not equal to itself


@given(
    RECORDS, LAYOUT, st.integers(0, 200), st.integers(0, 2), st.sampled_from(["", ",", "]", "[", "}", "x", " ", "{}"])
)
def test_an_array_is_taken_if_it_is_json_and_refused_if_not(
    records: list[object], layout: tuple[int | None, bool], at: int, cut: int, put: str
) -> None:
    text = json.dumps(records, indent=layout[0])
    text = text[:at] + put + text[at + cut :]
    try:
        expected = len(json.loads(text)) if text.lstrip().startswith("[") else None
    except json.JSONDecodeError:
        expected = None
    if expected is not None:
        assert len(in_array_of(text.encode())) == expected
    else:
        with pytest.raises(ProfileError, match=r"^load\.data: d\.json: line [0-9]+: expected "):
            in_array_of(text.encode())


@given(st.binary(max_size=60), st.sampled_from(["sharegpt", "jsonl", "text"]))
def test_any_bytes_are_a_record_or_a_value_error(raw: bytes, form: str) -> None:
    try:
        parse_record(raw, form)  # type: ignore[arg-type]
    except ValueError:
        return


@given(st.integers(0, 2**40), st.integers(0, 4095), st.integers(1, 200))
def test_every_record_once_before_any_again(seed: int, stage: int, records: int) -> None:
    assert sorted(record_for(seed, stage, index, records) for index in range(records)) == list(range(records))
