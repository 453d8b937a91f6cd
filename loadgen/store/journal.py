"""The journal on disk: written line by line, split into parts once it is long, and read back as one.

`journal.jsonl` has the newest lines, all of them in a run of less than an hour or so. When it reaches `PART_BYTES`, it
becomes `journal-0001.jsonl`, and a new one begins that says how many parts came before. A part is then thinned to
`journal-0001.jsonl.gz` (`loadgen.record.thinning`), a few lines with each tick, and deleted; until then, and if vramp
is killed meanwhile, the part is read as it was. So a week takes less than 1 GB, and every figure, event and failure
of a stage is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import zlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from loadgen.errors import UNDECODABLE, ResultError, reported_as
from loadgen.places import open_file, replacing
from loadgen.record.thinning import thinned
from loadgen.schema.engine import EngineView
from loadgen.schema.journal import Continued, Line, RunStarted, Ticked, decode_line, encode_line, time_of
from loadgen.store.growing import GrowingFile, writing

JOURNAL = "journal.jsonl"
PART_BYTES = 32 << 20
_MAX_UNPACKED_BYTES = 2 * PART_BYTES  # of a thinned part: it is smaller than the part was
_LINES_A_TICK = 4  # lines thinned with each tick, which itself brings one or two
_MAX_WAITING = 64 << 20  # over an hour at a thousand streams
_MAX_LINE = 64 << 20
_MAX_DAMAGED = 10_000


class _Encoder:
    """Writes an engine view that has not changed since the previous tick as `engine_again`."""

    def __init__(self) -> None:
        self._engine: EngineView | None = None  # as last written: it changes less often than at each tick

    def encode(self, line: Line) -> bytes:
        if isinstance(line, Ticked):
            engine, self._engine = self._engine, line.engine
            if line.engine is not None and line.engine == engine:
                line = msgspec.structs.replace(line, engine=None, engine_again=True)
        return encode_line(line) + b"\n"

    def forget(self) -> None:
        """Write the next engine view in full, because it goes into another file."""
        self._engine = None


class Journal(GrowingFile):
    """The lines of a run; the file is locked while it is open.

    The kernel releases the lock when the process dies, so `journal_is_held` can tell whether a run is still running.
    Lines that do not fit on a full disk wait in memory, and are written in order once it has room.
    """

    def __init__(self, path: Path, *, part_bytes: int = PART_BYTES) -> None:
        super().__init__(path, "the journal", "ab")
        _lock(self._file)
        self.parts = 0  # the number of parts that came before
        self._part_bytes = part_bytes
        self._encoder = _Encoder()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    @property
    def is_behind(self) -> bool:
        """Whether lines wait for room on the disk."""
        return bool(self._waiting)

    @property
    def is_lost(self) -> bool:
        """Whether so many bytes wait that the run must continue without a journal."""
        return self._waiting_bytes > _MAX_WAITING

    def write(self, line: Line) -> None:
        """Append the lines that wait and this one; raises `ResultError` when the disk fails, and keeps the rest."""
        try:
            if isinstance(line, Ticked) and not self._waiting and self._file.tell() >= self._part_bytes:
                self._begin_part(time_of(line))
        finally:
            self._waiting.append(self._encoder.encode(line))
            self._waiting_bytes += len(self._waiting[-1])
        while self._waiting:
            self.append(self._waiting[0])
            self._waiting_bytes -= len(self._waiting.popleft())

    def _begin_part(self, t_s: float) -> None:
        new = GrowingFile(self.path.with_name(f".{self.path.name}.new"), "a new part of the journal", "wb")
        new.append(encode_line(Continued(t_s=t_s, part=self.parts + 1)) + b"\n")
        _lock(new._file)
        old = part_of(self.path, self.parts + 1)
        with writing(self.path, "a new part of the journal"):
            try:
                old.hardlink_to(self.path)  # so that a file of this name exists at every moment
            except OSError:  # not every filesystem has links
                self.path.rename(old)
            new.path.replace(self.path)
        self._file.close()
        self._file = new._file
        self.parts += 1
        self._encoder.forget()


class OldParts:
    """Thins the parts of a journal, a few lines at a time."""

    def __init__(self, journal: Path) -> None:
        self.path = journal
        self._done = 0
        self._steps: Iterator[None] | None = None

    def work(self, parts: int) -> None:
        """Continue with the first of `parts` parts that is not thinned; raises `ResultError` when the disk fails."""
        if self._steps is None and self._done < parts:
            self._steps = _thin(part_of(self.path, self._done + 1))
        for _ in range(_LINES_A_TICK):
            if self._steps is not None and next(self._steps, self) is self:
                self._steps = None
                self._done += 1

    def close(self) -> None:
        """Stop; a part that is not completely thinned stays as it is."""
        self._steps = None


def _thin(part: Path) -> Iterator[None]:
    encoder = _Encoder()
    with writing(part, "the thinned part of the journal"):
        with replacing(_thinned(part)) as new, gzip.open(new, "wb") as packed, open_file(part) as file:
            for line in thinned(_lines(part, file, None)):
                packed.write(encoder.encode(line))
                yield
        part.unlink()


def part_of(journal: Path, number: int) -> Path:
    """The path of an older part of a journal, numbered from 1, until it is thinned."""
    return journal.with_name(f"{journal.stem}-{number:04}{journal.suffix}")


def _thinned(part: Path) -> Path:
    return part.with_name(f"{part.name}.gz")


def has_older_parts(journal: Path) -> bool:
    """Whether the run was so long that its journal has several parts, of which the older ones are thinned."""
    part = part_of(journal, 1)
    return part.is_file() or _thinned(part).is_file()


def _lock(file: BinaryIO) -> None:
    # A filesystem without locks must not prevent the run.
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def journal_is_held(path: Path) -> bool:
    """Whether a living process is writing this journal; False if it cannot be read."""
    try:
        with open_file(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def read_journal(path: Path, *, skipped: list[str] | None = None) -> Iterator[Line]:
    """The lines of a journal with all its parts, up to its end or a torn last line; raises `ResultError`.

    With a list for `skipped`, invalid lines and missing parts are skipped and described there instead.
    """
    with _reading(path), open_file(path) as file:
        newest = _lines(path, file, skipped)
        first = next(newest, None)
        if not isinstance(first, RunStarted):
            # If the line with the number of earlier parts is damaged or missing, the parts on disk are counted.
            if isinstance(first, Continued):
                before = first.part
            else:
                parts = path.parent.glob(f"{path.stem}-[0-9][0-9][0-9][0-9]{path.suffix}*")
                before = max((int(part.name[len(path.stem) + 1 :][:4]) for part in parts), default=0)
            for number in range(1, before + 1):
                yield from _read_part(part_of(path, number), skipped)
        if first is not None and not isinstance(first, Continued):
            yield first
        yield from newest


def _read_part(part: Path, skipped: list[str] | None) -> Iterator[Line]:
    try:
        with _reading(part), contextlib.ExitStack() as files:
            try:
                file = files.enter_context(open_file(part))
            except FileNotFoundError:  # it is thinned: that file is complete before the original is deleted
                packed = files.enter_context(open_file(_thinned(part)))
                file = files.enter_context(gzip.GzipFile(fileobj=packed))  # type: ignore[assignment]  # all but its type
            for line in _lines(part, file, skipped):
                if not isinstance(line, Continued):
                    yield line
    except ResultError as error:
        if skipped is None:
            raise
        skipped.append(str(error))


def _reading(path: Path) -> contextlib.AbstractContextManager[None]:
    return reported_as(f"{path}: the journal cannot be read", (OSError, EOFError, zlib.error))


def _lines(path: Path, file: BinaryIO, skipped: list[str] | None) -> Iterator[Line]:
    """The lines of one file, as `read_journal`."""
    engine: EngineView | None = None
    damaged = 0
    packed = isinstance(file, gzip.GzipFile)
    for number, text in enumerate(iter(partial(file.readline, _MAX_LINE), b""), start=1):
        if packed and file.tell() > _MAX_UNPACKED_BYTES:
            raise ResultError(f"{path}: the rest is left out: unpacked, it exceeds {_MAX_UNPACKED_BYTES >> 20} MiB")
        if not text.endswith(b"\n"):
            if len(text) == _MAX_LINE:
                raise ResultError(f"{path}:{number}: not a journal: the line exceeds {_MAX_LINE >> 20} MiB")
            return
        try:
            line = decode_line(text)
        except UNDECODABLE as error:
            problem = f"{path}:{number}: not a line of a journal: {error}"
            if skipped is None:
                raise ResultError(problem) from error
            damaged += 1
            if damaged > _MAX_DAMAGED:
                raise ResultError(f"{path}: not a journal: over {_MAX_DAMAGED:,} damaged lines") from error
            skipped.append(problem)
            engine = None  # the damaged line may have changed it
            continue
        if isinstance(line, Ticked):
            if line.engine_again:
                line = msgspec.structs.replace(line, engine=engine, engine_again=False)
            engine = line.engine
        yield line
