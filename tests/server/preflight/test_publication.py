"""What a box is told of a publication's conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.preflight.boxes import check, healthy_box, profile_of


@pytest.mark.parametrize(
    ("system", "seen"),
    [
        ({}, None),
        ({"requests": 80}, None),
        ({"requests": 1000}, "requests 80, not 1,000"),
        ({"image": "rocm/vllm:1"}, "image no container, not rocm/vllm:1"),
        ({"gpu": "MI300X", "gpus": 8, "version": "0.6.2"}, None),  # nothing is known of these here
    ],
)
def test_only_what_is_known_to_differ_is_named(tmp_path: Path, system: dict[str, object], seen: str | None) -> None:
    box = healthy_box(tmp_path)
    given = [f"reference.system.{key}={value!r}".replace("'", '"') for key, value in system.items()]
    profile = profile_of(tmp_path, 'reference.source="a publication"', "load.requests=80", *given)
    found = [finding.seen for finding in check(box, profile) if finding.id == "unlike-publication"]
    assert found == ([seen] if seen else [])


def test_a_profile_without_a_publication_is_told_nothing(tmp_path: Path) -> None:
    assert check(healthy_box(tmp_path), profile_of(tmp_path)) == []
