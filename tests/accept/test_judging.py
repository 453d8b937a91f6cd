"""Criteria are passed, failed or left open as the evidence allows, and not beyond it."""

import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadgen.criteria import EXACT_MATCH, PHASES
from loadgen.errors import ProfileError, ResultError
from loadgen.metrics.acceptance import FALSE_PASS, requests_needed
from loadgen.metrics.difference import chance_of_misses
from loadgen.profile.schema import Reference, ReferencePoint
from loadgen.record.acceptance import certificate_from, evidence_of
from loadgen.schema.certificate import AcceptLine, AcceptResumed, FactFound, Judged, PhaseEnded, ProbesRun, RunMade
from loadgen.schema.result import Result
from loadgen.schema.samples import ProbeFigure, ProbeResult
from loadgen.store.acceptance import (
    CERTIFICATE,
    certificate_of,
    demands_of,
    read_lines,
    verify,
    write_certificate_json,
)
from tests.accept.evidence import (
    LOAD,
    began,
    box,
    certified,
    counts,
    criterion,
    measured,
    of_phase,
    profile,
    written,
)
from tests.metrics.served import run_of, served

TTFT = "ttft_p99_ms"


@pytest.mark.parametrize(
    ("scales", "outcome"),
    [((1.0, 1.01, 1.02), "pass"), ((2.0, 2.01, 2.0), "fail"), ((1.25, 1.35, 1.45), "inconclusive")],
)
def test_the_interval_decides(scales: tuple[float, ...], outcome: str) -> None:
    certificate = certified(*box(scales))
    one = criterion(certificate, TTFT)
    assert one.demand.load == LOAD
    assert (certificate.verdict, one.outcome, one.starts) == (outcome, outcome, 3)
    assert one.low is not None and one.high is not None
    assert isinstance(one.observed, float) and one.low < one.observed < one.high
    assert bool(one.needs) is (outcome == "inconclusive")


def test_an_interval_is_said_by_its_side_and_its_confidences() -> None:
    rate = {"figure": "output_tokens_per_s", "source": "a test"}

    def reason(bound: float) -> str:
        return criterion(
            certified(*box((1.0, 1.01, 1.02), criteria=[{**rate, "at_least": bound}])), rate["figure"]
        ).reason

    assert criterion(certified(*box((1.0, 1.01, 1.02))), TTFT).reason.endswith(" ms (97.5 %): all at most 150 ms")
    assert criterion(certified(*box((2.0, 2.01, 2.0))), TTFT).reason.endswith(": all above 150 ms")
    assert reason(10).endswith(": all at least 10.0 tok/s") and " (97.5 %) to " in reason(10)
    assert reason(1e6).endswith(": all below 1,000,000 tok/s")


def test_no_latency_is_below_0() -> None:
    one = criterion(certified(*box((0.5, 1.5), starts=2)), TTFT)
    assert (one.outcome, one.low) == ("inconclusive", 0.0) and one.reason.startswith("0.00 to ")


def test_two_starts_cannot_fail_a_box_unless_their_spread_is_known() -> None:
    scales = (1.6, 1.63)
    known: dict[str, Any] = {"start_spread": "2%", "start_spread_source": "eight boxes"}
    assert criterion(certified(*box(scales, starts=2)), TTFT).outcome == "inconclusive"
    assert criterion(certified(*box(scales, starts=2, **known)), TTFT).outcome == "fail"
    wide = criterion(certified(*box((1.6, 2.2), starts=2, **known)), TTFT)
    assert wide.outcome == "inconclusive" and wide.spread is not None and wide.spread.freedom == 1


def limited(result: Result) -> Result:
    return replace(result, stages=[replace(stage, limited=True, why="full") for stage in result.stages])


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_client_that_was_the_limit_decides_nothing(scale: float) -> None:
    lines, results = box((scale,) * 3)
    results["performance-2"] = limited(results["performance-2"])
    one = criterion(certified(lines, results), TTFT)
    assert one.outcome == "inconclusive"
    assert one.reason == "2 of 3 starts count: client-limited in 1"
    assert one.details == ("start 2: client-limited: full",)
    assert one.needs == "1 more start"
    more = RunMade(unix_s=1.7e9, phase="performance", folder="performance-4", start=4)
    resumed = AcceptResumed(unix_s=1.7e9, vramp_version="1", boot_id="b", booted_unix_s=1.6e9, starts=4, burn_in_s=1.0)
    again = certified([*lines, resumed, more, Judged(1.7e9)], results | {"performance-4": measured(4, scale)})
    assert criterion(again, TTFT).outcome == ("pass" if scale == 1.0 else "fail")


def test_a_stage_that_was_cut_short_is_no_start() -> None:
    lines, results = box((1.0, 1.0, 1.0))
    results["performance-3"] = replace(results["performance-3"], state="failed")
    assert criterion(certified(lines, results), TTFT).starts == 2


def test_a_percentile_of_few_requests_is_no_start() -> None:
    lines, results = box((1.0, 1.01, 1.02))
    results["performance-2"] = brief(seconds=23.0)
    some = criterion(certified(lines, results), TTFT)
    assert (some.outcome, some.requests, some.needs) == ("inconclusive", (480, 480), "1 more start")
    assert some.details == ("start 2: too few requests: 368, and ttft_p99_ms takes 381",)
    none = criterion(certified(lines, {name: brief() for name in results}), TTFT)
    assert (none.outcome, none.low, none.reason) == (
        "inconclusive",
        None,
        "0 of 3 starts count: too few requests in 3",
    )
    assert none.needs == "365 more requests at this load in each start; more starts alone do not help"


def brief(seconds: float = 1.0) -> Result:
    return run_of(served(1, seconds=seconds), finished_at="2026-01-01T00:01:00.000Z")


@pytest.mark.parametrize(
    ("figure", "edge", "requests"),
    [
        ("ttft_p50_ms", 9.0, 4),
        ("ttft_p999_ms", 9.0, 3838),
        ("ttft_mean_ms", 9.0, 0),
        ("requests_per_s", 9.0, 0),
        ("goodput_percent", 95.0, 73),
        ("goodput_percent", 100.0, 3838),
    ],
)
def test_how_many_requests_a_start_needs(figure: str, edge: float, requests: int) -> None:
    assert requests_needed(figure, edge) == requests


def test_a_fault_in_two_percent_of_the_requests_does_not_pass_a_p99() -> None:
    """Two starts hide it from their p99s less often than the promised rate of a false PASS."""
    needed = requests_needed(TTFT, 150.0)
    beyond = needed - math.ceil(0.99 * needed) + 1  # so many slow ones show in a nearest-rank p99
    missed = 1 - chance_of_misses(beyond, needed, 0.02)
    assert missed**2 < FALSE_PASS / 2


def test_a_load_of_too_few_requests_is_known_before_it_begins() -> None:
    parts = profile(slo={})
    load = parts.load.model_copy(update={"requests": 100, "duration": None})
    figures: Any = {"ttft_p99_ms": 100.0, "ttft_p50_ms": 50.0}
    reference = Reference(source="a paper", points=[ReferencePoint(concurrency=16, figures=figures)])
    published = parts.model_copy(update={"load": load, "reference": reference})
    demands, not_tested, _ = demands_of(published)
    assert [one.figure for one in demands if one.rule == "mean"] == ["ttft_p50_ms"]
    assert f"ttft_p99_ms at {LOAD}: of 100 requests, and takes 381" in not_tested
    with pytest.raises(ProfileError, match="of 100 requests, and takes 381: give that load more requests"):
        demands_of(profile().model_copy(update={"load": load}))


@pytest.mark.parametrize("figure", ["tokens_per_joule", "goodput_percent"])
def test_a_figure_that_no_start_has_asks_for_no_more_starts(figure: str) -> None:
    row = {"figure": figure, "at_least": 1, "source": "a test"}
    lines, results = box((1.0, 1.0, 1.0), criteria=[row])
    one = criterion(certified(lines, results), figure)
    assert one.outcome == "inconclusive" and one.reason.startswith("0 of 3 starts count: no ")
    assert one.needs.endswith("; more starts alone do not help")
    busy = criterion(certified(lines, {name: limited(result) for name, result in results.items()}), figure)
    assert (busy.reason, busy.needs) == ("0 of 3 starts count: client-limited in 3", one.needs)


def test_an_inconclusive_box_passes_when_it_goes_on() -> None:
    lines, results = box((1.0, 1.2), starts=2)
    assert criterion(certified(lines, results), TTFT).outcome == "inconclusive"
    again = {f"performance-{n}": measured(n, 1.1) for n in (3, 4, 5)}
    lines += [
        AcceptResumed(unix_s=1.7e9, vramp_version="1", boot_id="b", booted_unix_s=1.6e9, starts=5, burn_in_s=1.0),
        *(RunMade(unix_s=1.7e9, phase="performance", folder=folder, start=int(folder[-1])) for folder in again),
        PhaseEnded(unix_s=1.7e9, phase="performance", state="done"),
        Judged(1.7e9),
    ]
    one = criterion(certified(lines, results | again), TTFT)
    assert (one.outcome, one.starts) == ("pass", 5)


def test_judging_again_spends_less_once_there_is_more() -> None:
    lines, results = box((1.0, 1.01, 1.02))
    made = RunMade(unix_s=1.7e9, phase="performance", folder="performance-1", start=1)
    first, same, more = (
        criterion(certified([*lines, *added], results), TTFT).low_confidence or 0.0
        for added in ([], [Judged(1.7e9)], [made, Judged(1.7e9)])
    )
    assert first == same < more


def test_a_server_that_was_not_reached_spends_nothing() -> None:
    answers = [counts("output", EXACT_MATCH, int(n < 182), trials=1) for n in range(200)]
    lines = of_phase("output", *answers, criteria=[ASKED])
    again: list[AcceptLine] = [
        *lines,
        RunMade(unix_s=1.7e9, phase="output", folder="output-2", start=2),
        Judged(1.7e9),
    ]
    unreached = {"output-2": replace(measured(1), state="failed", stages=[])}
    once, twice = (criterion(certified(each, unreached), EXACT_MATCH) for each in (lines, again))
    assert once == twice


def test_a_box_is_looked_at_anew() -> None:
    lines = of_phase("box", counts("box", "blocking_findings", 1))
    again = [*lines, *of_phase("box", counts("box", "blocking_findings", 0))[1:]]
    assert (certified(lines, {}).verdict, certified(again, {}).verdict) == ("fail", "pass")


def test_a_server_that_died_under_load_fails_in_any_phase() -> None:
    lines, results = box((1.0, 1.0, 1.0, 1.0))
    results["performance-2"] = replace(results["performance-2"], state="server_died", reason="out of memory")
    certificate = certified(lines, results)
    assert criterion(certificate, "server_restarts").reason == "1 of them: out of memory"


@pytest.mark.parametrize(("scale", "outcome"), [(1.0, "pass"), (1.25, "fail")])
def test_a_box_like_others(tmp_path: Path, scale: float, outcome: str) -> None:
    folders = []
    for number, other in enumerate((1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99)):
        lines, results = box((other, other * 1.003, other * 0.997))
        lines[1] = replace(lines[1], box=replace(lines[1].box, host=f"box-{number}"))  # type: ignore[union-attr]
        folders.append(written(tmp_path / str(number), lines, results))
        write_certificate_json(folders[-1])
    lines, results = box((scale, scale * 1.003, scale * 0.997), like=folders)
    one = criterion(certified(lines, results), "tpot_p50_ms")
    assert one.outcome == outcome
    assert one.demand.source.startswith("8 acceptances that passed")
    assert one.spread is not None and one.spread.freedom == 18


def test_other_boxes_must_be_of_the_same_kind_and_have_passed(tmp_path: Path) -> None:
    failed = written(tmp_path / "failed", *box((3.0, 3.0, 3.0)))
    write_certificate_json(failed)
    with pytest.raises(ProfileError, match="its verdict is fail"):
        demands_of(profile(), [failed])
    lines, results = box((1.0, 1.01, 1.0))
    passed = written(tmp_path / "passed", lines, results)
    write_certificate_json(passed)
    with pytest.raises(ProfileError, match="one box shows no spread"):
        demands_of(profile(), [passed])
    with pytest.raises(ProfileError, match=r"passed: is an acceptance that is named twice"):
        demands_of(profile(), [passed, passed])
    other = replace(lines[1].box, gpus=())  # type: ignore[union-attr]
    with pytest.raises(ProfileError, match=r"is a box with 1 x Simulated GPU, this one has no GPU"):
        demands_of(profile(), [passed], other)
    with pytest.raises(ProfileError, match=r"--like .*: cannot be read"):
        demands_of(profile(), [tmp_path / "none"])


def test_a_profile_without_anything_to_judge_by() -> None:
    with pytest.raises(ProfileError, match="nothing says how fast the box must be"):
        demands_of(profile(slo={}))
    demands, not_tested, _ = demands_of(profile(slo={}, phases=["burn-in"]))
    assert {demand.phase for demand in demands} == {"burn-in"}
    assert [one.partition(":")[0] for one in not_tested] == [name for name in PHASES if name != "burn-in"]


def test_a_criterion_replaces_the_limit_of_the_same_figure() -> None:
    row: dict[str, Any] = {"figure": TTFT, "at_most": 100, "margin": "5%", "source": "a test"}
    (found,) = [one for one in demands_of(profile(criteria=[row]))[0] if one.figure == TTFT]
    assert (found.bound, found.margin, found.source) == (100.0, 5.0, "a test")
    with pytest.raises(ProfileError, match="has no such load, but conc 16"):
        demands_of(profile(criteria=[{**row, "concurrency": 8}]))


def test_a_row_for_one_load_replaces_that_for_all() -> None:
    row: dict[str, Any] = {"figure": TTFT, "at_most": 100, "source": "a test"}
    one = {**row, "at_most": 90, "concurrency": 16}
    for rows in ([row, one], [one, row]):
        assert [each.bound for each in demands_of(profile(criteria=rows))[0] if each.figure == TTFT] == [90.0]
    with pytest.raises(ProfileError, match=rf"{TTFT}: two rows hold at {LOAD}"):
        demands_of(profile(criteria=[one, {**row, "isl": 512}]))


def test_one_event_fails_and_none_bounds_the_rate() -> None:
    short = certified(of_phase("burn-in", counts("burn-in", "gpu_resets", 0, hours=0.005)), {})
    assert criterion(short, "gpu_resets").reason == "none in 18 s: at most 599 an hour (95 %)"
    none = certified(of_phase("burn-in", counts("burn-in", "gpu_resets", 0, hours=24.0)), {})
    assert criterion(none, "gpu_resets").reason.startswith("none in 24")
    assert "at most 0.12 an hour" in criterion(none, "gpu_resets").reason
    one = certified(of_phase("burn-in", counts("burn-in", "gpu_resets", 1, hours=24.0, text="gpu 3 was reset")), {})
    assert one.verdict == "fail"
    assert criterion(one, "gpu_resets").reason == "1 of them: gpu 3 was reset"


def test_what_a_box_does_not_report_is_not_tested() -> None:
    certificate = certified(of_phase("burn-in", counts("burn-in", "gpu_resets", 0, hours=1.0)), {})
    assert [one.demand.figure for one in certificate.criteria] == ["gpu_resets"]
    assert "xids: nothing here reports it" in certificate.not_tested
    assert certificate.verdict == "pass"


def test_a_phase_that_has_not_ended_decides_nothing_but_failure() -> None:
    lines = of_phase("burn-in", counts("burn-in", "gpu_resets", 0, hours=1.0))[:-2]
    assert certified(lines, {}).verdict == "inconclusive"
    assert certified([*lines, counts("burn-in", "gpu_resets", 1)], {}).verdict == "fail"


@pytest.mark.parametrize(("state", "verdict"), [("failed", "fail"), ("skipped", "inconclusive")])
def test_a_phase_that_could_not_be_carried_out(state: str, verdict: str) -> None:
    lines = of_phase("burn-in", state=state)
    lines[-2] = replace(lines[-2], reason="the server died twice")
    certificate = certified(lines, {})
    assert certificate.verdict == verdict
    said = certificate.reasons if state == "failed" else certificate.not_tested
    assert "burn-in: the server died twice" in said


ASKED = {"figure": "exact_match_percent", "at_least": 90, "source": "a test"}


@pytest.mark.parametrize(("right", "outcome"), [(198, "pass"), (150, "fail"), (182, "inconclusive")])
def test_right_answers(right: int, outcome: str) -> None:
    answers = [counts("output", "exact_match_percent", int(n < right), trials=1) for n in range(200)]
    one = criterion(certified(of_phase("output", *answers, criteria=[ASKED]), {}), "exact_match_percent")
    assert (one.outcome, one.observed, one.samples) == (outcome, right / 2, 200)
    assert one.low is not None and one.high is not None and 0 < one.low < right / 2 < one.high <= 100
    assert (" more questions (--set accept.question_count=" in one.needs) is (outcome == "inconclusive")


def test_facts_of_the_box() -> None:
    rows = [
        {"figure": "driver", "equals": "6.16.6", "source": "a test"},
        {"figure": "gpus", "equals": 8, "source": "a test"},
    ]
    facts = [
        FactFound(unix_s=1.7e9, phase="box", figure="driver", subject="gpu 1", value="6.16.6"),
        FactFound(unix_s=1.7e9, phase="box", figure="gpus", value=8.0),
    ]
    good = certified(of_phase("box", *facts, counts("box", "blocking_findings", 0), criteria=rows), {})
    assert good.verdict == "pass"
    facts[0] = replace(facts[0], value="6.15")
    bad = certified(of_phase("box", *facts, criteria=rows), {})
    assert criterion(bad, "driver").reason == "gpu 1: 6.15"
    assert (bad.verdict, criterion(bad, "gpus").outcome) == ("fail", "pass")
    assert criterion(certified(of_phase("box", criteria=rows), {}), "driver").outcome == "inconclusive"


@pytest.mark.parametrize(("gb_per_s", "verdict"), [(310.0, "pass"), (290.0, "fail")])
def test_probes_are_held_against_their_criteria(gb_per_s: float, verdict: str) -> None:
    busbw = ProbeFigure("busbw", "8 GPUs", gb_per_s, "GB/s", low=304.0, source="AMD")
    state: Any = "fail" if busbw.is_bad else "pass"
    result = ProbeResult("rccl", state, busbw.words if busbw.is_bad else "", (busbw,))
    certificate = certified(of_phase("silicon", ProbesRun(1.7e9, (result,))), {})
    assert certificate.verdict == verdict


def rising(percent: float, rows: int = 400, seconds: float = 10.0) -> Result:
    values = [100.0 * (1 + percent / 100 * n / rows) * (1 + 0.01 * (-1) ** (n // 3)) for n in range(rows)]
    columns: dict[str, list[float | int | None]] = {"t_s": [seconds * n for n in range(rows)], "ttft_p50_ms": [*values]}
    return replace(measured(1), series=columns)


def test_what_grows_in_the_first_minutes_is_no_trend() -> None:
    made = RunMade(unix_s=1.7e9, phase="burn-in", folder="burn-in-1", start=1)
    certificate = certified(of_phase("burn-in", made), {"burn-in-1": rising(600.0, seconds=2.0)})
    one = criterion(certificate, "ttft_rise_percent")
    assert (one.outcome, one.reason, one.needs) == ("inconclusive", "too short to tell", "runs of 20 minutes at least")


def test_a_run_of_20_minutes_is_long_enough() -> None:
    made = RunMade(unix_s=1.7e9, phase="burn-in", folder="burn-in-1", start=1)
    certificate = certified(of_phase("burn-in", made), {"burn-in-1": rising(0.0, rows=1190, seconds=1.0)})
    assert criterion(certificate, "ttft_rise_percent").outcome == "pass"


def test_a_trend_is_not_judged_before_its_end() -> None:
    made = RunMade(unix_s=1.7e9, phase="burn-in", folder="burn-in-1", start=1)
    certificate = certified(of_phase("burn-in", made)[:-2], {"burn-in-1": rising(60.0)})
    one = criterion(certificate, "ttft_rise_percent")
    assert one.outcome == "inconclusive" and one.low is not None and one.low > 10


@pytest.mark.parametrize(("percent", "outcome"), [(0.0, "pass"), (60.0, "fail"), (14.1, "inconclusive")])
def test_a_trend_during_the_burn_in(percent: float, outcome: str) -> None:
    made = RunMade(unix_s=1.7e9, phase="burn-in", folder="burn-in-1", start=1)
    certificate = certified(of_phase("burn-in", made), {"burn-in-1": rising(percent)})
    assert criterion(certificate, "ttft_rise_percent").outcome == outcome


def test_a_folder_is_verified_and_what_was_changed_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", *box((1.0, 1.01, 1.02)))
    certificate = write_certificate_json(folder)
    assert verify(folder) == []
    assert certificate == certificate_of(folder)
    assert set(certificate.files) == {"accept.jsonl", *(f"performance-{n}/result.json" for n in (1, 2, 3))}
    path = folder / CERTIFICATE
    text = path.read_text()
    path.write_text(text.replace('"verdict": "pass"', '"verdict": "fail"'))
    assert verify(folder) == ["certificate.json: verdict is fail, the evidence says pass"]
    path.write_text(text.replace(" ", "", 1))
    assert verify(folder) == ["certificate.json: its bytes are not those that vramp writes"]
    path.write_text(text)
    result = folder / "performance-2" / "result.json"
    result.write_bytes(result.read_bytes().replace(b'"p99": 1', b'"p99": 2', 1))
    assert verify(folder)[0] == "performance-2/result.json: has changed"
    result.unlink()
    assert verify(folder)[0] == "performance-2/result.json: is missing"
    assert verify(folder)[-1].startswith(f"{result.parent}: has no result, though accept.jsonl says")


def test_links_and_empty_folders_that_were_added_are_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", *box((1.0, 1.01, 1.02)))
    (folder / "06-burn-in").mkdir()  # of a run that was killed at once
    os.mkfifo(folder / "performance-1" / "watch.sock")  # no copy of the folder has it
    write_certificate_json(folder)
    (folder / "performance-1" / "watch.sock").unlink()
    assert verify(folder) == []
    (folder / "added").mkdir()
    (folder / "link").symlink_to("/etc")
    assert verify(folder) == ["added: was not there", "link: was not there"]


def test_criteria_that_were_left_out_are_counted(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", *box((1.0, 1.01, 1.02)))
    certificate = write_certificate_json(folder)
    shorter = replace(certificate, criteria=certificate.criteria[1:], not_tested=(), reasons=("all is well",))
    (folder / CERTIFICATE).write_bytes(msgspec.json.encode(shorter))
    assert verify(folder) == [
        "certificate.json: reasons: 1 of 1 are not what the evidence says",
        "certificate.json: criteria has 3 entries, the evidence gives 4",
        "certificate.json: not_tested has 0 entries, the evidence gives 8",
    ]


@pytest.mark.parametrize("damage", [b"{}\n", b"not json\n"])
def test_damaged_lines_are_refused_by_their_number(tmp_path: Path, damage: bytes) -> None:
    folder = written(tmp_path / "a", *box((1.0, 1.0, 1.0)))
    path = folder / "accept.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + damage)
    with pytest.raises(ResultError, match=r"accept\.jsonl:9: not a line"):
        read_lines(folder)
    path.write_bytes(whole + b'{"type":"Jud')  # torn by a kill
    assert len(read_lines(folder)) == 8


def test_runs_outside_the_folder_are_refused(tmp_path: Path) -> None:
    lines: list[AcceptLine] = [began(profile()), RunMade(unix_s=1.7e9, phase="performance", folder="../other", start=1)]
    with pytest.raises(ResultError, match="outside its folder"):
        certificate_of(written(tmp_path / "a", lines, {}))


def test_lines_are_read_as_they_were_written() -> None:
    lines, results = box((1.0, 1.0, 1.0))
    again = [msgspec.json.decode(msgspec.json.encode(line), type=type(line)) for line in lines]
    assert again == lines
    assert certificate_from(evidence_of(again, results), {}) == certified(lines, results)


def test_verdicts_that_could_not_have_been_given_prove_nothing() -> None:
    certificate = certified(*box((1.0, 1.0, 1.0)))
    assert "links_lost: nothing here reports it" in certificate.not_tested
    made = RunMade(unix_s=1.7e9, phase="output", folder="output-1", start=1)
    unchecked = certified(of_phase("output", made), {"output-1": measured(1)})
    assert "output_faults: nothing here reports it" in unchecked.not_tested
