"""The profile reference: the page in the manual is that of the code, and says something of every key."""

from pathlib import Path

import pytest

from loadgen.profile.reference import _section, profile_reference
from loadgen.profile.schema import tables
from loadgen.profile.values import ProfileTable

PAGE = Path(__file__).parents[2] / "docs" / "profile.md"


def test_the_page_of_the_manual_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == profile_reference(), "run `make docs`"


def test_every_table_and_key_is_in_it() -> None:
    page = profile_reference()
    for path, model in tables().items():
        assert not path or f"[{path}]" in page
        for key in model.model_fields:
            assert f"| `{key}` |" in page


class Undescribed(ProfileTable):
    key: int = 1


def test_a_key_without_a_description_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Undescribed\.key: has no description"):
        _section("", Undescribed)
