"""Every kept input through its reader: the seeds, and what once made a reader fail."""

from pathlib import Path

import pytest

from tests.fuzz.readers import CORPUS, READERS, Reader, outcome_of

_BY_NAME = {reader.name: reader for reader in READERS}
_KEPT = sorted(CORPUS.glob("*/*"))
_MAX_BYTES = 250_000


@pytest.mark.parametrize("path", _KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_kept_input_is_read_or_refused(path: Path) -> None:
    assert outcome_of(_BY_NAME[path.parent.name], path.read_bytes())


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_has_seeds_of_which_it_reads_one(reader: Reader) -> None:
    outcomes = [outcome_of(reader, path.read_bytes()) for path in _KEPT if path.parent.name == reader.name]
    refusals = tuple(error.__name__ for error in reader.refuses)
    assert any(not outcome.startswith(refusals) for outcome in outcomes) if refusals else outcomes


def test_the_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in _KEPT) < _MAX_BYTES
