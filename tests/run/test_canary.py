"""Canaries during real loads: silent on a healthy simulator, in none of its figures, and quick where it goes wrong."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from loadgen.profile.schema import Profile
from loadgen.report.output import compare_output, output_verdicts
from loadgen.run.operations import Stop
from loadgen.run.run import Run
from loadgen.schema.finding import Verdict
from loadgen.schema.journal import CanaryMeasured
from loadgen.schema.result import Result
from loadgen.schema.snapshot import Snapshot
from loadgen.store.journal import read_journal
from loadgen.store.recover import folded
from tests.engines import Simulator, attach, profile, simulator
from tests.run.driving import finish, in_turn, once, outcome, run_of

OFTEN = {"interval_s": 0.05}
"""Forty times as often as usual: what is found here within 1.5 s is found within a minute."""
ENDLESS: dict[str, Any] = {"requests": None, "duration": "60s", "concurrency": 8, "osl": 64}


def canaries_of(run: Run) -> Iterator[CanaryMeasured]:
    return (line for line in read_journal(run.folder / "journal.jsonl") if isinstance(line, CanaryMeasured))


async def until_found(parts: Profile) -> tuple[Result, list[Verdict], int]:
    """Run until a verdict on the output is shown; how many canaries that took under load."""

    def found(snapshot: Snapshot) -> bool:
        return any(verdict.id.startswith("output-") for verdict in snapshot.verdicts)

    run = run_of(parts)
    result = await finish(run, once(found, Stop()))
    assert result.reason == "stopped by the operator"
    return result, output_verdicts(result), sum(line.when == "load" for line in canaries_of(run))


async def test_a_healthy_run_is_as_it_was_without_them(engine: Simulator) -> None:
    run = run_of(attach(engine, load={"requests": 40, "osl": 32}, canary=OFTEN))
    result = await finish(run)
    (stage,), truth = result.stages, engine.truth()
    assert folded(run.folder / "journal.jsonl").canary == result.canary
    lines = list(canaries_of(run))
    assert {line.when for line in lines} == {"before", "load", "after"}
    assert truth["canaries"]["completed"] == len(lines)
    assert truth["requests"]["completed"] == stage.requests.completed + 1  # and the first request
    assert truth["tokens"]["output"] == stage.tokens.output + 1
    check, canary = stage.truth, stage.canary
    assert check is not None and check.agrees, check
    assert (check.requests_server, check.output_tokens_server) == (40, 40 * 32)
    assert check.ttft_outside_ms is not None
    assert canary is not None and canary.sent == sum(line.index == 0 for line in lines)
    assert canary.drift == pytest.approx(0.0, abs=0.01) and canary.same == canary.answers
    assert stage.others is not None and not stage.others.requests_per_s
    assert output_verdicts(result) == [] and "prefix-cache" not in {verdict.id for verdict in stage.verdicts}
    assert result.canary is not None and result.canary.unchecked == ()
    assert all(text.after == pytest.approx(text.idle, abs=0.01) for text in result.canary.texts)


async def test_a_fault_above_a_concurrency_is_found_by_canaries(engine: Simulator) -> None:
    engine.faults("wrong:streams=8")
    _, (verdict, *_), canaries = await until_found(attach(engine, load=ENDLESS, canary=OFTEN))
    assert verdict.id == "output-drift" and "nats a token below" in verdict.text
    assert canaries <= 30


async def test_of_two_servers_the_one_that_drifts_is_named() -> None:
    with simulator() as well, simulator("--fault", "drift:nats=0.2,streams=3") as ill:
        urls = profile({"engine": "attach", "urls": [well.url, ill.url]}, load=ENDLESS, canary=OFTEN)
        _, verdicts, _ = await until_found(urls)
    assert [verdict.text.partition(": ")[0] for verdict in verdicts] == ["server 2"]


@pytest.mark.parametrize(
    ("fault", "method", "reported"),
    [
        ("refuse_scores", None, "log probabilities are not supported"),
        ("some_scores", "prompt_logprobs", "scores only some tokens"),
    ],
)
async def test_what_the_endpoint_does_not_score_is_said_and_the_rest_is_checked(
    engine: Simulator, fault: str, method: str | None, reported: str
) -> None:
    engine.faults(fault)
    result, _ = await outcome(attach(engine, load={"requests": 40, "osl": 32}, slo={"failed": "99%"}, canary=OFTEN))
    canary, (stage,) = result.canary, result.stages
    assert canary is not None and canary.method == method
    assert any(reported in words for words in canary.unchecked)
    assert bool(canary.texts) == (method is not None)
    assert stage.canary is not None and stage.canary.same == stage.canary.answers > 0
    assert [verdict for verdict in output_verdicts(result) if verdict.id == "output-drift"] == []


async def test_two_engines_are_distinguished_and_one_is_the_same_as_itself(engine: Simulator) -> None:
    parts = attach(engine, load={"requests": 4}, canary=OFTEN)
    (a, _), (again, _) = await outcome(parts), await outcome(parts)
    engine.faults("drift:nats=0.02", "flip")
    b, _ = await outcome(parts)
    same, other = (compare_output(a.canary, run.canary, 0.99) for run in (again, b))
    assert same is not None and other is not None
    assert {text.word for text in same.texts} == {"no evidence"}
    assert (same.same_answers, same.answers) == (3, 3)
    assert [text.word for text in other.texts] == ["worse"] * 6
    assert other.texts[-1].difference == pytest.approx(-0.02, abs=0.005)
    assert (other.same_answers, other.answers) == (0, 3)
    # Two precisions of the same weights: 1e-4 nats a token apart, each exact in itself.
    assert a.canary is not None
    exact = replace(a.canary, noise=0.0)
    moved = replace(exact, texts=tuple(replace(text, idle=text.idle + 1e-4) for text in exact.texts))
    same, other = (compare_output(exact, canary, 0.99) for canary in (exact, moved))
    assert same is not None and same.notes == []
    assert other is not None and {text.word for text in other.texts} == {"no evidence"}
    assert other.notes == [
        "idle scores are up to 0.0001 nats a token apart, repeated ones less: the two compute differently"
    ]


async def test_a_reference_that_was_taken_next_to_others_is_said_to_be(engine: Simulator) -> None:
    body = {"model": "simulator", "prompt": [400] * 16, "max_tokens": 8_000, "ignore_eos": True, "stream": True}
    async with (
        httpx.AsyncClient(trust_env=False) as client,
        client.stream("POST", f"{engine.url}/v1/completions", json=body) as others,
    ):
        assert others.status_code == 200
        result, _ = await outcome(attach(engine, load={"requests": 40}, canary=OFTEN))
    assert result.canary is not None
    (words,) = result.canary.unchecked
    assert words.startswith("server 1 was not idle before the load, others had 1 request on it")
    assert output_verdicts(result) == []


async def test_a_server_whose_first_score_takes_long_is_checked_all_the_same(
    engine: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real one that has just started compiles kernels for it: that is none of the time for all idle canaries."""
    monkeypatch.setattr("loadgen.run.canary.IDLE_S", 0.0)
    result, _ = await outcome(attach(engine, load={"requests": 4}, canary=OFTEN))
    assert result.canary is not None and result.canary.method == "prompt_logprobs"
    assert [text.idle_scores for text in result.canary.texts] == [1]


async def test_a_canary_that_is_never_answered_is_reported_when_the_run_ends(
    engine: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.run.canary.IDLE_S", 0.0)  # however short the wait was
    act = in_turn(
        (streaming, lambda _: engine.faults("silent")),  # the one stream of the load is under way: canaries alone
        (lambda snapshot: snapshot.load.stage_elapsed_s > 1.0, Stop()),
    )
    load = {"requests": None, "duration": "60s", "concurrency": 1, "osl": 8_000}
    result, error = await outcome(attach(engine, load=load, canary=OFTEN), act)
    assert (error, result.state) == (None, "stopped")
    assert result.canary is not None
    assert any("until the run ended" in words for words in result.canary.unchecked)


def streaming(snapshot: Snapshot) -> bool:
    return snapshot.phase == "running" and snapshot.load.held == 1
