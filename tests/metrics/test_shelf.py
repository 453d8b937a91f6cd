"""What was put on a shelf is taken from it, wherever it could be kept."""

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
from loadgen.metrics.shelf import Shelf


@given(st.lists(st.binary(max_size=200)))
def test_each_is_given_back(all_figures: list[bytes]) -> None:
    shelf = Shelf()
    places = [shelf.put(figures) for figures in all_figures]
    assert [shelf.take(place) for place in places] == all_figures


def test_it_takes_no_memory_and_leaves_no_file(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    place = shelf.put(b"figures")
    assert shelf._kept == {}
    assert list(tmp_path.iterdir()) == []
    assert shelf.take(place) == b"figures"


def test_a_shelf_that_is_gone_holds_no_descriptor(tmp_path: Path) -> None:
    def held() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = held()
    shelf = Shelf(tmp_path)
    shelf.put(b"figures")
    assert held() == before + 1
    del shelf
    assert held() == before


@pytest.fixture
def no_room() -> Iterator[None]:
    """No file may grow beyond 1,000 bytes: a write ends there, the next one fails. Python ignores the signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_the_disk_does_not_take_stays_in_memory(tmp_path: Path, no_room: None) -> None:
    shelf = Shelf(tmp_path)
    all_figures = [bytes([number]) * 400 for number in range(5)]
    places = [shelf.put(figures) for figures in all_figures]
    assert [shelf.take(place) for place in places] == all_figures
    assert list(shelf._kept) == places[2:]


def test_without_a_folder_it_stays_in_memory(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "removed")
    assert shelf.take(shelf.put(b"figures")) == b"figures"


def test_what_the_disk_has_lost_is_an_error(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    place = shelf.put(b"figures")
    assert shelf._file is not None
    os.ftruncate(shelf._file, 3)
    with pytest.raises(ResultError, match="cannot be read back"):
        shelf.take(place)
