"""Traces: the published formats, what is left out and reported, what cannot be read, and how prompts are shared."""

import json
import re
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.format import percent
from loadgen.profile.load import Load
from loadgen.workload.data import Dataset, DatasetReader, index_dataset
from loadgen.workload.prompts import FALLBACK_IDS, WORDS, Prompts, text_prompts, token_prompts
from loadgen.workload.shape import shape_of
from loadgen.workload.traces import TraceOptions, TraceReader, TraceRow
from loadgen.workload.work import RequestWriter, trace_pieces

MOONCAKE = """\
{"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 250, "input_length": 1030, "output_length": 26, "hash_ids": [0, 1, 3]}
{"timestamp": 250, "input_length": 700, "output_length": 5, "hash_ids": [0, 4]}
{"timestamp": 3000, "input_length": 1024, "output_length": 7, "hash_ids": [5, 1]}
"""
AZURE_2023 = """\
TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:51.2224670,879,55"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
BURST_1 = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,Conversation log
119,GPT-4,0,0,0,API log
120,GPT-4,300,7,307,API log
"""
BURST_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.5,,2,ChatGPT,36,29,65,API log
"""
LINE = '{"timestamp": 1000, "input_length": 9, "output_length": 2}\n'


def written(folder: Path, text: str, name: str = "trace") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


def rows(data: Dataset) -> list[TraceRow]:
    reader = DatasetReader(data)
    return [reader.row(number) for number in range(data.records)]


@pytest.mark.parametrize(
    ("text", "times_s", "lengths", "kind"),
    [
        (MOONCAKE, [0, 0.25, 0.25, 3], [(1200, 52), (1030, 26), (700, 5), (1024, 7)], "Mooncake trace"),
        (AZURE_2023, [0, 4.314579, 4.541877], [(374, 44), (396, 109), (879, 55)], "Azure trace"),
        (AZURE_2024, [0, 0.99007], [(2162, 5), (2399, 6)], "Azure trace"),
        (BURST_1, [0, 40, 115], [(472, 18), (1087, 230), (300, 7)], "BurstGPT trace"),
        (BURST_3, [0, 51.5], [(906, 446), (36, 29)], "BurstGPT trace"),
        (LINE + LINE.replace("1000", "2500"), [0, 1.5], [(9, 2), (9, 2)], "trace of 2"),
        (
            "\ufeff" + AZURE_2024.replace(",", ' , "').replace("\n", '"\n'),
            [0, 0.99007],
            [(2162, 5), (2399, 6)],
            "Azure",
        ),
    ],
)
def test_traces_as_they_are_published(
    tmp_path: Path, text: str, times_s: list[float], lengths: list[tuple[int, int]], kind: str
) -> None:
    data = index_dataset(written(tmp_path, text))
    assert [(row.isl, row.osl) for row in rows(data)] == lengths
    assert list(DatasetReader(data).times_s()) == pytest.approx(times_s, abs=1e-5)
    assert (data.form, data.records) == ("trace", len(lengths))
    assert data.span_s == pytest.approx(times_s[-1], abs=1e-5)
    assert data.longest == max(isl + osl for isl, osl in lengths)
    assert data.note is not None and data.note.startswith(kind)


@pytest.mark.parametrize("text", [MOONCAKE, AZURE_2023, BURST_1])
def test_a_whole_float_is_a_count(tmp_path: Path, text: str) -> None:
    written_as_floats = re.sub(r"(?<=[:,])( ?[0-9]+)(?=[,}\r\n])", r"\1.0", text)
    assert written_as_floats != text
    plain = rows(index_dataset(written(tmp_path, text)))
    assert rows(index_dataset(written(tmp_path, written_as_floats))) == plain
    with pytest.raises(ProfileError, match="line"):
        index_dataset(written(tmp_path, written_as_floats.replace(".0", ".5")))


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    text = BURST_1 + "".join(f"{200 + number},GPT-4,10,2,12,API log\n" for number in range(300)) + "9,GPT-4,1,1,2,x\n"
    data = index_dataset(written(tmp_path, text), options=TraceOptions(max_length=1000))
    assert data.note is not None
    assert data.note.endswith(
        "left out: 1 row longer than load.trace.max_length, 1 row without answer tokens (requests that failed), "
        "1 row without prompt tokens, 1 row with a timestamp before that of the row above"
    )
    assert data.records == 302


def test_a_part_of_a_trace_at_another_speed(tmp_path: Path) -> None:
    path = written(tmp_path, BURST_1 + "999,GPT-4,1,1,2,API log\nbeyond the end: nobody reads it\n")
    data = index_dataset(path, options=TraceOptions(start=30, end=116, speed=10))
    assert list(DatasetReader(data).times_s()) == [1.0, 8.5]
    assert data.span_s == 7.5
    assert data.note is not None and "; from 30 s to 116 s of the file; at 10 times its speed; left out: " in data.note


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", ["no rows in it"]),
        ("time,in,out\n1,2,3\n", ["line 1", "expected", "TIMESTAMP, ContextTokens", "Request tokens", "'time,in,out'"]),
        ("TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n", ["line 1", "NumImages", "no images"]),
        (AZURE_2023[:-3], ["line 4", "3 columns", "found 2", "cut off"]),
        (AZURE_2023.replace("396", "3.5"), ["line 3", "column ContextTokens", "'3.5'"]),
        (AZURE_2023.replace("396", "-1"), ["line 3", "column ContextTokens", "'-1'"]),
        (AZURE_2023.replace("396", "9" * 5000), ["line 3", "column ContextTokens", "'9999"]),
        (AZURE_2023.replace("2023-11-16 18:15:50.9951690", "yesterday"), ["line 3", "column TIMESTAMP", "'yesterday'"]),
        (BURST_1.replace("GPT-4,300", '"GPT,4",300'), ["line 6", "6 columns", "found 7", "comma"]),
        (LINE.replace('"timestamp": 1000, ', ""), ["line 1", "timestamp is missing"]),
        (BURST_1.replace("\n45,", "\nnan,"), ["line 3", "column Timestamp", "'nan'"]),
        (BURST_1.replace("\n45,", "\n1e300,"), ["line 3", "column Timestamp"]),
        (BURST_1.replace("\n45,", "\n\x1b[31m,"), ["line 3", "column Timestamp"]),
        (BURST_1.replace("\n45,", "\n1,"), ["line 3", "ascending", "4 s before", "sort"]),
        (LINE.replace("1000", "NaN"), ["line 1", "timestamp"]),
        (LINE.replace("1000", "1e400"), ["line 1"]),
        (LINE.replace("9", "-9"), ["line 1", "input_length", "-9"]),
        (LINE.replace("9", "9" * 30), ["line 1", "input_length"]),
        (LINE.replace("9", "0"), ["nothing to send", "1 row without prompt tokens"]),
        (LINE + LINE[:20], ["line 2", "expected", "input_length"]),
        (LINE.replace("}", ', "hash_ids": [1, 2]}'), ["line 1", "hash_ids: 2 blocks of 512", "load.trace.block_size"]),
        (LINE.replace("9", "1024").replace("}", ', "hash_ids": [1]}'), ["hash_ids: 1 block of 512", "1024"]),
        (LINE.replace("}", ', "hash_ids": [-1]}'), ["line 1", "hash_ids"]),
        (LINE.replace("}", ', "hash_ids": ["a"]}'), ["line 1", "hash_ids"]),
        (LINE.replace("}", ', "hash_ids": [99999999999999999999999]}'), ["line 1", "hash_ids"]),
        (MOONCAKE.replace("1030", "1024"), ["line 2", "hash_ids: 3 blocks"]),
    ],
)
def test_what_cannot_be_read_says_where_and_what_to_do(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text, "t.csv" if text[0] != "{" else "t.jsonl")
    with pytest.raises(ProfileError) as caught:
        index_dataset(path)
    message = str(caught.value)
    assert all(word in message for word in [path, *words]), message
    assert "\x1b" not in message
    assert len(message) < len(path) + 500


def test_nothing_between_start_and_end(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"no rows between load\.trace\.start and load\.trace\.end"):
        index_dataset(written(tmp_path, BURST_1), options=TraceOptions(start=1000))


@given(st.binary(max_size=80), st.sampled_from([AZURE_2023, BURST_3, MOONCAKE]))
def test_any_line_is_a_row_or_a_value_error(line: bytes, text: str) -> None:
    trace = TraceReader(TraceOptions())
    trace.read(text.split("\n")[0].strip().encode(), 1)
    try:
        trace.read(line, 2)
    except ValueError:
        return


fields = st.tuples(st.floats(0, 1e9), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))


@given(
    st.lists(fields, min_size=1, max_size=20), st.permutations(["Timestamp", "Request tokens", "Response tokens", "x"])
)
def test_every_row_of_a_csv_is_sent_or_counted(made: list[tuple[float, int, int]], header: list[str]) -> None:
    trace = TraceReader(TraceOptions())
    assert trace.read(",".join(header).encode(), 1) is None
    names = ("Timestamp", "Request tokens", "Response tokens", "x")
    read = [
        trace.read(",".join(str(dict(zip(names, (*row, ""), strict=True))[name]) for name in header).encode(), number)
        for number, row in enumerate(made, start=2)
    ]
    sent = [row for row in read if row is not None]
    latest = [max(at_s for at_s, _, _ in made[: place + 1]) for place in range(len(made))]
    assert [(row.isl, row.osl) for row in sent] == [
        (isl, osl) for (at_s, isl, osl), last_s in zip(made, latest, strict=True) if isl and osl and at_s == last_s
    ]
    assert [row.at_s for row in sent] == sorted(row.at_s for row in sent)
    left_out = len(made) - len(sent)
    assert ("left out" in trace.note(len(sent), 0.0)) == bool(left_out)


# Prompts that share blocks.

ids = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=6)


@cache
def prompts_of(seed: int) -> Prompts:
    return token_prompts(FALLBACK_IDS, seed)


def prompt_of(row: TraceRow, index: int, *, block_size: int, times: int = 0, seed: int = 1) -> list[int]:
    pieces = trace_pieces(row, 3, index, block_size=block_size, times=times)
    prompt: list[int] = json.loads(prompts_of(seed).compose(pieces))
    return prompt


@given(ids, ids, st.integers(0, 6), st.integers(16, 600), st.integers(0, 599), st.integers(0, 599))
def test_prompts_share_exactly_the_blocks_that_their_ids_share(
    one: list[int], other: list[int], common: int, size: int, short_one: int, short_other: int
) -> None:
    other = one[:common] + other
    rows = [
        TraceRow(0.0, max((len(blocks) - 1) * size + 1, len(blocks) * size - short), 1, blocks)
        for blocks, short in ((one, short_one), (other, short_other))
    ]
    prompts = [prompt_of(row, number, block_size=size) for number, row in enumerate(rows)]
    assert [len(prompt) for prompt in prompts] == [row.isl for row in rows]
    same = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    shared = min(same * size, *(row.isl for row in rows))
    assert prompts[0][:shared] == prompts[1][:shared]
    # Where the ids part, the prompts part within one block of a cache.
    after = [prompt[shared : shared + 16] for prompt in prompts]
    assert len(after[0]) < 16 or len(after[1]) < 16 or after[0] != after[1]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**24 - 1))
def test_a_block_is_the_same_wherever_its_id_is(block: int, index: int) -> None:
    row = TraceRow(0.0, 1024, 1, [7, block])
    first = prompt_of(row, 0, block_size=512)
    assert first == prompt_of(row, index, block_size=512)
    assert first[512:] == prompt_of(TraceRow(0.0, 512, 1, [block]), 9, block_size=512)
    assert first != prompt_of(row, 0, block_size=512, seed=2)
    assert first[:16] != prompt_of(row, 0, block_size=512, times=1)[:16]


def test_what_the_ids_do_not_cover_is_the_requests_own() -> None:
    row = TraceRow(0.0, 700, 1, [7])
    one, other = prompt_of(row, 7, block_size=512), prompt_of(row, 8, block_size=512)
    assert (len(one), one[:512]) == (700, other[:512])
    assert one[512:528] != other[512:528]
    assert one[512:528] != prompt_of(TraceRow(0.0, 512, 1, [7]), 0, block_size=512)[:16]


def test_blocks_of_text_share_their_words() -> None:
    write = text_prompts(WORDS, 1, overhead=9)
    one, other = (
        json.loads(write.compose(trace_pieces(TraceRow(0.0, 1100, 1, blocks), 0, 0, block_size=512))).split(" ")
        for blocks in ([1, 2, 3], [1, 2, 4])
    )
    assert len(one) == len(other) == 1100 - 9 + 1
    shared = 1024 - 9 + 1
    assert one[:shared] == other[:shared]
    assert one[shared : shared + 5] != other[shared : shared + 5]


@pytest.mark.parametrize(("text", "repeats"), [(MOONCAKE, True), (AZURE_2023, False), (LINE, False)])
def test_only_a_trace_that_shares_repeats(tmp_path: Path, text: str, repeats: bool) -> None:
    load = Load(data=written(tmp_path, text))
    work = shape_of(load, load.isl, load.osl).work
    assert (work.repeats, work.meant_hits) == (repeats, float(repeats))


def test_a_trace_that_shares_is_sent_in_its_order_and_each_time_anew(tmp_path: Path) -> None:
    load = Load.model_validate({"data": written(tmp_path, MOONCAKE)})
    shape = shape_of(load, load.isl, load.osl)
    prompts = token_prompts(FALLBACK_IDS, 1)
    writers = [RequestWriter(shape.work, prompts, seed=1, key=key, isl=shape.isl, osl=shape.osl) for key in (0, 1)]
    sent = [writers[0].request(number) for number in range(8)]
    assert [(len(json.loads(each.prompt)), each.osl) for each in sent] == [
        (1200, 52), (1030, 26), (700, 5), (1024, 7)
    ] * 2  # fmt: skip
    firsts = [json.loads(each.prompt)[:512] for each in sent]
    assert firsts[0] == firsts[1] == firsts[2]
    assert firsts[0] not in (firsts[3], firsts[4], json.loads(writers[1].request(0).prompt)[:512])


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=12))
def test_the_share_that_can_be_found_is_that_of_the_ids(blocks: list[list[int]]) -> None:
    made = [TraceRow(0.0, len(each) * 512, 1, each) for each in blocks]
    trace = TraceReader(TraceOptions())
    for number, row in enumerate(made):
        line = {"timestamp": number, "input_length": row.isl, "output_length": 1, "hash_ids": row.hash_ids}
        assert trace.read(json.dumps(line).encode(), number) is not None
    known: set[tuple[int, ...]] = set()
    hits = 0
    for each in blocks:
        prefixes = [tuple(each[:place]) for place in range(1, len(each) + 1)]
        hits += 512 * sum(prefix in known for prefix in prefixes)
        known |= set(prefixes)
    share = percent(hits / sum(row.isl for row in made))
    assert f"at most {share} of its prompt tokens" in trace.note(len(made), 0.0)


def test_a_row_of_a_file_that_was_changed_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, MOONCAKE)
    data = index_dataset(path)
    for text in ("x" * 1000, MOONCAKE[:100]):
        Path(path).write_text(text)
        with pytest.raises(ProfileError, match="trace: was changed while it was in use"):
            DatasetReader(data).row(1)


def test_an_end_before_its_start() -> None:
    with pytest.raises(ValueError, match="60 s is not after start"):
        Load.model_validate({"trace": {"start": "2m", "end": "1m"}})
