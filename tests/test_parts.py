"""GPUs by their data sheets: found by what their libraries call them, and by what an operator does."""

from pathlib import Path

import pytest

from loadgen.errors import ProfileError
from loadgen.parts import PARTS, named_box, part_called
from loadgen.vendors import platform_of


def test_every_part_has_its_own_word_and_a_platform() -> None:
    words = [part.word for part in PARTS]
    assert len(set(words)) == len(words)
    assert all(platform_of(part.arch) is not None for part in PARTS)
    assert platform_of("rocm") is None


@pytest.mark.parametrize(
    ("text", "word", "count"),
    [
        ("mi300x", "mi300x", 8),
        ("MI300X", "mi300x", 8),
        ("4xMI355X", "mi355x", 4),
        ("16xh100-sxm", "h100-sxm", 16),
        ("l40s", "l40s", None),
        ("1xl40s", "l40s", 1),
    ],
)
def test_a_box_is_a_part_and_a_number(text: str, word: str, count: int | None) -> None:
    part, found = named_box(text)
    assert (part.word, found) == (word, count)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("h100", "h100-pcie, h100-nvl, h100-sxm"),
        ("8xmi300", "mi300x"),
        ("0xmi300x", "mi300x"),
        ("h200-sxn", "h200-sxm"),
        ("toaster", "mi210, mi300x, mi325x, mi350x, mi355x"),
        ("", "mi210, mi300x"),
        ("8x", "mi210, mi300x"),
    ],
)
def test_an_unknown_part_is_refused_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(ProfileError, match="no such GPU is known") as refused:
        named_box(text)
    assert str(refused.value).startswith(f"--box {text}: ")
    assert nearest in str(refused.value)


def test_the_manual_names_every_part() -> None:
    manual = (Path(__file__).parents[1] / "docs/server.md").read_text(encoding="utf-8")
    assert [part.word for part in PARTS if f"`{part.word}`" not in manual] == []


def test_simulated_gpu_name_matches_a_part() -> None:
    assert part_called("Simulated GPU") == part_called("AMD Instinct MI300X VF")
    assert part_called("NVIDIA GB200") is None
