"""Readers of files that people, other tools and earlier runs have left: profiles, journals, results, datasets, logs."""

from __future__ import annotations

import contextlib
import tomllib
from zlib import crc32

import msgspec
import numpy as np

from loadgen.distributions import parse_lengths
from loadgen.errors import ProfileError
from loadgen.masking import masked_text
from loadgen.metrics.histogram import Histogram
from loadgen.plan.request import parse_plan
from loadgen.profile.document import build_profile, load_document, load_profile, variant_names
from loadgen.profile.schema import Profile
from loadgen.record.figures import baseline_of, with_baseline
from loadgen.record.summary import summary_json, summary_of
from loadgen.report.certificate import certificate_sections, headline
from loadgen.report.html.certificate import certificate_page
from loadgen.report.text import sections_text
from loadgen.run.replay import Replay
from loadgen.run.sweep import read_sweep
from loadgen.schema.deltas import EncodedHistogram
from loadgen.schema.journal import Continued
from loadgen.schema.result import RESULT, Result
from loadgen.schema.summary import RunSummary
from loadgen.server.preflight.facts import _facts_of
from loadgen.server.process.log import MAX_LINE_CHARS, LogTail, split_line, telling_lines
from loadgen.server.recipes.imported import Origin, RecipeChoice, toml_text
from loadgen.server.recipes.read import import_text
from loadgen.server.vllm.diagnosis import diagnose, kernel_kills
from loadgen.server.vllm.startup import StartupWatch, last_start
from loadgen.store.acceptance import certificate_of, read_certificate
from loadgen.store.journal import JOURNAL, part_of, read_journal
from loadgen.store.library import HistogramInterval, read_histograms, read_summary
from loadgen.store.recover import recover
from loadgen.store.runs import read_result
from loadgen.telemetry.capture import played, read_capture
from loadgen.workload import data as datasets
from loadgen.workload.data import DatasetReader, Format, index_dataset
from loadgen.workload.files import index_folder
from loadgen.workload.questions import questions_of
from loadgen.workload.sessions import index as session_index
from loadgen.workload.sessions.data import SessionReader
from loadgen.workload.sessions.index import index_sessions
from loadgen.workload.traces import TraceOptions
from tests.fuzz.checks import require_amounts, require_finite, require_same, require_showable, scratch, written
from tui.catalog import past_run
from tui.config import Config, read_config

# Profiles.


def profile(data: bytes) -> Profile:
    path = written("profile.toml", data)
    found = load_profile(path)
    for name in variant_names(load_document(path)):
        with contextlib.suppress(ProfileError):
            load_profile(path, variant=name)
    require_finite(found.model_dump(exclude={"server": {"args"}}))
    return found


def imported(data: bytes) -> str:
    """A recipe, a row or a script, by what it looks like; what is written is read again."""
    found = import_text(data, "x", RecipeChoice(hardware="h200"))
    assert tomllib.loads(toml_text(found, Origin("x"), "1")) == found.document | {"recipe": {"source": "x"}}
    return found.kind


def override(data: bytes) -> Profile:
    """Words after `--set`, one a line."""
    document = {"server": {"engine": "simulator"}, "load": {"isl": 8, "osl": 8}}
    found = build_profile(document, where="x.toml", overrides=data.decode("utf-8", "surrogateescape").split("\n"))
    require_finite(found.model_dump(exclude={"server": {"args"}}))
    return found


def lengths(data: bytes) -> object:
    """What a profile or an operator writes for lengths, and for a plan."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(ProfileError):
        require_finite(parse_plan(text))
    found = parse_lengths(text)
    for share in (0.0, 0.5, 1 - 2**-53):
        assert found.at(share) >= 1
    return "lengths"


def config(data: bytes) -> Config:
    return read_config(written("config.toml", data))


# Runs.


def journal(data: bytes) -> int:
    """Line by line, strictly and with damages."""
    path = written(JOURNAL, data)
    damages: list[str] = []
    found = list(read_journal(path, skipped=damages))
    for line in found:
        require_finite(line)
    if not damages:
        require_same(list(read_journal(path)), found)
    return min(len(damages), 3)


def journal_part(data: bytes) -> int:
    """An older part of a journal that is in two files, thinned and compressed."""
    path = written(f"parts/{JOURNAL}", msgspec.json.encode(Continued(t_s=9.0, part=1)) + b"\n")
    part_of(path, 1).with_suffix(".jsonl.gz").write_bytes(data)
    damages: list[str] = []
    for line in read_journal(path, skipped=damages):
        require_finite(line)
    return min(len(damages), 3)


def recovered(data: bytes) -> str:
    """A result of what is left of a journal: it is read again, and its requests add up."""
    folder = scratch() / "killed"
    folder.mkdir(exist_ok=True)
    (folder / JOURNAL).write_bytes(data)
    result = read_result(recover(folder, force=True))
    require_finite(result)
    for stage in result.stages:
        require_amounts(stage.requests)
        require_amounts(stage.tokens)
    return result.state


def replayed(data: bytes) -> str:
    folder = scratch() / "replayed"
    folder.mkdir(exist_ok=True)
    (folder / JOURNAL).write_bytes(data)
    replay = Replay(folder / JOURNAL)
    while replay._next is not None:
        replay._to_next_tick()
    msgspec.json.encode(replay._snapshot())
    return "replayed"


def result(data: bytes) -> Result:
    """A result, also as a baseline and as the picker shows it."""
    path = written(f"result/{RESULT}", data)
    past_run(path.parent)
    found = read_result(path)
    require_finite(found)
    require_same(found, msgspec.json.decode(msgspec.json.encode(found), type=Result))
    with_baseline(found, baseline_of("x", found))
    summary = summary_of(found)
    require_same(summary, msgspec.json.decode(summary_json(summary), type=RunSummary))
    return found


def summary(data: bytes) -> RunSummary:
    found = read_summary(written("summary.json", data))
    require_finite(found)
    return found


def histogram_log(data: bytes) -> list[HistogramInterval]:
    found = read_histograms(written("histograms.hlog", data))
    require_finite(found)
    return found


def histogram(data: bytes) -> Histogram:
    """HdrHistogram's text in a result, and the packed form of a journal."""
    with contextlib.suppress(ValueError):
        count, _, packed = data.partition(b" ")
        sums = [int(part) for part in count[:60].split(b",")]
        number, total, squares, least, most = sums
        encoded = EncodedHistogram(
            packed=packed, count=number, sum_us=total, sum_squares_us=squares, min_us=least, max_us=most
        )
        again = Histogram.decode(encoded)
        require_finite(again.summary())
    found = Histogram.from_hdr(data.decode("utf-8", "replace"))
    require_finite(found.summary())
    require_same(found.count, Histogram.from_hdr(found.hdr()).count)
    return found


def sweep(data: bytes) -> object:
    return read_sweep(written("sweep/sweep.json", data).parent)


def acceptance(data: bytes) -> str:
    """What it comes to, as text and page; the folder has no runs."""
    certificate = certificate_of(written("acceptance/accept.jsonl", data).parent)
    text = "\n".join([headline(certificate), sections_text(certificate_sections(certificate))])
    require_showable(text)
    assert "<script" not in certificate_page(certificate)
    return text


def certificate(data: bytes) -> object:
    return read_certificate(written("certified/certificate.json", data).parent)


def questions(data: bytes) -> object:
    return questions_of(str(written("questions.jsonl", data)), 100)


# Datasets and traces.

_OPTIONS = (
    TraceOptions(),
    TraceOptions(start=1.0, end=60.0, speed=3.0, block_size=16, max_length=4096),
)


def _indexed(data: bytes, name: str, form: Format | None, options: TraceOptions = _OPTIONS[0]) -> str:
    path = written(name, data)
    datasets._indexed.cache_clear()
    try:
        found = index_dataset(str(path), form, options)
        require_amounts(found)
        require_showable(found.note or "")
        reader = DatasetReader(found)
        for number in range(min(found.records, 50)):
            content = reader.row(number) if found.form == "trace" else reader.text(number)
            require_amounts(content)
            msgspec.json.encode(content)
        assert np.isfinite(list(reader.times_s())).all()
        return found.form
    finally:
        for index in index_folder().iterdir():
            index.unlink()


def dataset(data: bytes) -> str:
    """Any file: its form is guessed."""
    return _indexed(data, "data.json", None)


def sharegpt(data: bytes) -> str:
    return _indexed(data, "talks.json", "sharegpt")


def json_lines(data: bytes) -> str:
    return _indexed(data, "lines.jsonl", "jsonl")


def text_lines(data: bytes) -> str:
    return _indexed(data, "lines.txt", "text")


def trace(data: bytes) -> str:
    return _indexed(data, "trace.csv", "trace", _OPTIONS[crc32(data) % len(_OPTIONS)])


def sessions(data: bytes) -> str:
    path = written("sessions.json", data)
    session_index._indexed.cache_clear()
    try:
        found = index_sessions(str(path), max_context=1_000_000 if crc32(data) % 2 else None)
        require_amounts(found)
        require_showable(found.note or "")
        reader = SessionReader(found)
        for number in range(min(found.sessions, 20)):
            tree = reader.tree(number)
            require_amounts(tree)
            for index, request in enumerate(tree.requests[:50]):
                assert all(before < index for before in request.after)
                assert sum(tokens for _, tokens in tree.context(index)) == request.isl
        return found.form
    finally:
        for index_file in index_folder().iterdir():
            index_file.unlink()


# Logs.


def log(data: bytes) -> int:
    """The same lines however it was written; what is shown is safe."""
    path = scratch() / "server.log"
    path.write_bytes(data[: len(data) // 2])
    tail = LogTail(path)
    lines = tail.poll()
    with path.open("ab") as file:
        file.write(data[len(data) // 2 :] + b"\n")
    lines += tail.poll()
    path.write_bytes(data + b"\n")
    require_same(lines, LogTail(path).poll())
    for line in (*lines, tail.unfinished, *tail.distinct_lines()):
        require_showable(line)
        assert len(line) <= MAX_LINE_CHARS
        split_line(line)
    telling_lines(lines)
    return min(len(lines), 3)


def startup(data: bytes) -> str:
    """The milestones of a start, from its log."""
    watch = StartupWatch(0.0)
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n")):
        watch.feed(line, float(number))
    watch.finish(1e6)
    for one in watch.milestones:
        assert one.state == "done"
        assert one.progress is None or 0 <= one.progress <= 1
        require_finite(one)
    return ",".join(one.id for one in watch.milestones if one.detail)


def diagnosis(data: bytes) -> str:
    """Why a server ended, from its log."""
    lines = data.decode("utf-8", "replace").split("\n")
    found = diagnose(lines, None, phase="starting" if len(data) % 2 else "serving")
    for text in (found.title, found.remedy, *found.evidence):
        require_showable(text)
        assert len(text) < 2000
    return found.cause


def kernel_log(data: bytes) -> int:
    found = kernel_kills(0.0, written("kmsg", data))
    for line in found:
        require_showable(line)
    return len(found)


def mask(data: bytes) -> str:
    """Masking again changes nothing."""
    text = data.decode("utf-8", "replace")
    masked = masked_text(text)
    require_same(masked, masked_text(masked))
    return "changed" if masked != text else "same"


# Small files.


def capture(data: bytes) -> int:
    _, playable = read_capture(written("capture.jsonl", data))
    for part in playable.values():
        last_s = -1.0
        samples = played(part.samples, 0.0)
        for _ in range(2 * len(part.samples) + 1):
            sample = next(samples)
            require_finite(sample)
            assert sample.t_s > last_s or len(part.samples) > 1
            last_s = sample.t_s
    return len(playable)


def model_config(data: bytes) -> object:
    found = _facts_of(written("model/config.json", data).parent)
    require_amounts(found)
    return found is not None


def start_times(data: bytes) -> object:
    found = last_start(written("starts/x.jsonl", data).parent, "x")
    require_amounts(found)
    return found is not None
