"""Boxes compared by their certificates: an outlier is found by rank, and boxes that are alike have none."""

import json
import random
from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadgen.errors import ProfileError
from loadgen.metrics.acceptance import rank_sum_chance
from loadgen.report.certificate import compare_boxes
from loadgen.schema.certificate import Certificate
from loadgen.store.acceptance import CERTIFICATE, write_certificate_json
from tests.accept.evidence import box, certified, written
from tests.tui.cli.commands import verb

compare = verb("compare")


def test_a_rank_sum_is_as_likely_as_the_count_of_all_choices() -> None:
    own, others = [3.0, 5.0, 5.0], [1.0, 2.0, 4.0, 5.0]
    values = sorted(own + others)
    rank = {value: values.index(value) + (values.count(value) + 1) / 2 for value in values}
    sums = [sum(rank[value] for value in chosen) for chosen in combinations(values, 3)]
    observed = sum(rank[value] for value in own)
    assert rank_sum_chance(own, others) == pytest.approx(sum(one >= observed for one in sums) / len(sums))
    assert rank_sum_chance([9.0] * 5, [1.0] * 35) == pytest.approx(1 / 658_008)


@pytest.fixture(scope="module")
def eight() -> dict[str, Certificate]:
    """Seven boxes that are alike, and one that is 4 % slower."""
    chance = random.Random(1)
    means = [1.0] * 7 + [1.04]
    return {
        f"box-{n}": certified(*box([mean * chance.gauss(1, 0.005) for _ in range(3)])) for n, mean in enumerate(means)
    }


def test_the_slow_box_stands_out_and_the_others_do_not(eight: dict[str, Certificate]) -> None:
    ranked, figures = compare_boxes(eight)
    rows = ranked.tables[0].rows
    assert [row.outlier_in for row in rows[:7]] == [[]] * 7
    assert rows[7].outlier_in == ["ttft_p99_ms at conc 16, ISL 512, OSL 128"]
    assert max(rows, key=lambda row: row.mean_rank).name == "box-7"
    assert len(figures.tables[0].rows) == 8


def test_boxes_that_are_not_alike_are_refused(eight: dict[str, Certificate]) -> None:
    other = certified(*box((1.0, 1.0, 1.0)))
    with pytest.raises(ProfileError, match=r"model some/model and another; --force"):
        compare_boxes({"a": eight["box-0"], "b": replace(other, model="another")})
    assert compare_boxes({"a": eight["box-0"], "b": replace(other, model="another")}, force=True)[0].notes


def test_the_command_compares_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [written(tmp_path / name, *box((1.0, 1.01, 1.02))) for name in "ab"]
    for folder in folders:
        write_certificate_json(folder)
    assert compare([str(folder) for folder in folders]) == 0
    assert "unknown: too few starts" in capsys.readouterr().out
    assert compare([*map(str, folders), "--json"]) == 0
    boxes = json.loads(capsys.readouterr().out)["boxes"]
    assert [(one["verdict"], one["outlier_in"]) for one in boxes] == [("pass", None)] * 2
    edited = folders[1] / CERTIFICATE
    text = edited.read_text()
    edited.write_text(text.replace('"verdict": "pass"', '"verdict": "fail"'))
    assert compare([*map(str, folders)]) == 0
    assert "b: its certificate is not that of its evidence: certificate.json: verdict" in capsys.readouterr().err
    edited.write_text(text)
    with pytest.raises(ProfileError, match="a folder is named twice"):
        compare([str(folders[0]), f"{folders[0]}/../a"])
    with pytest.raises(ProfileError, match=r"a is an acceptance, .*performance-1 is not"):
        compare([str(folders[0]), str(folders[1] / "performance-1")])
    with pytest.raises(ProfileError, match="--junit: is for runs"):
        compare([*map(str, folders), "--junit", str(tmp_path / "j.xml")])
