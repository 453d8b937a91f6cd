"""What was spilled is read back, wherever it could be kept."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ResultError
from loadgen.metrics.spill import SpillFile


@given(st.lists(st.binary(max_size=200)))
def test_each_is_given_back(all_figures: list[bytes]) -> None:
    spill_file = SpillFile()
    extents = [spill_file.write(figures) for figures in all_figures]
    assert [spill_file.read(extent) for extent in extents] == all_figures


def test_it_takes_no_memory_and_leaves_no_file(tmp_path: Path) -> None:
    spill_file = SpillFile(tmp_path)
    extent = spill_file.write(b"figures")
    assert spill_file._kept == {}
    assert list(tmp_path.iterdir()) == []
    assert spill_file.read(extent) == b"figures"


def test_a_file_that_is_gone_holds_no_descriptor(tmp_path: Path) -> None:
    def held() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = held()
    spill_file = SpillFile(tmp_path)
    spill_file.write(b"figures")
    assert held() == before + 1
    del spill_file
    assert held() == before


@pytest.fixture
def no_room() -> Iterator[None]:
    """No file may grow beyond 1,000 bytes: a write ends there, the next one fails. Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_the_disk_does_not_take_stays_in_memory(tmp_path: Path, no_room: None) -> None:
    spill_file = SpillFile(tmp_path)
    all_figures = [bytes([number]) * 400 for number in range(5)]
    extents = [spill_file.write(figures) for figures in all_figures]
    assert [spill_file.read(extent) for extent in extents] == all_figures
    assert list(spill_file._kept) == extents[2:]


def test_without_a_folder_it_stays_in_memory(tmp_path: Path) -> None:
    spill_file = SpillFile(tmp_path / "removed")
    assert spill_file.read(spill_file.write(b"figures")) == b"figures"


def test_what_the_disk_has_lost_is_an_error(tmp_path: Path) -> None:
    spill_file = SpillFile(tmp_path)
    extent = spill_file.write(b"figures")
    assert spill_file._file is not None
    os.ftruncate(spill_file._file, 3)
    with pytest.raises(ResultError, match="cannot be read back"):
        spill_file.read(extent)
