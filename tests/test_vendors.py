"""What all vendors have in common."""

import pytest

from loadgen.vendors import is_partition


@pytest.mark.parametrize(
    ("mode", "expected"), [(None, False), ("", False), ("SPX", False), ("DPX", True), ("CPX", True), ("MIG", True)]
)
def test_which_modes_are_parts_of_a_gpu(mode: str | None, expected: bool) -> None:
    assert is_partition(mode) is expected
