"""Three engines that differ: one speculates, one has other weights, one another precision."""

from itertools import pairwise

import pytest
import pytest_asyncio

from loadgen.report.output import OutputComparison, compare_output, output_verdicts
from loadgen.schema.result import Result
from tests.vllm.engine import CACHE, finish, here

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

DRAFTED = 4
N_GRAM = f'server.args.speculative-config={{method="ngram",num_speculative_tokens={DRAFTED},prompt_lookup_max=4}}'
BOXES = {
    "speculating": [
        N_GRAM,
        "server.args.enable-mfu-metrics=true",
    ],
    "other weights": [f"server.model={CACHE / 'tiny-llama-1'}"],
    "other precision": ["server.args.dtype=float32"],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def boxes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """The same load on each, one after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("boxes"))
        load = ["load.concurrency=4", "load.duration=15s"]
        return {name: await finish(here(*load, *overrides)) for name, overrides in BOXES.items()}


async def test_drafts_by_position_on_random_prompts(boxes: dict[str, Result]) -> None:
    (stage,) = boxes["speculating"].stages
    assert stage.engine is not None and stage.engine.spec is not None
    spec = stage.engine.spec
    assert spec.drafts is not None and spec.drafted_tokens is not None and spec.accepted_tokens is not None
    assert 0 < spec.accepted_tokens <= spec.drafted_tokens <= DRAFTED * spec.drafts
    assert spec.acceptance == pytest.approx(spec.accepted_tokens / spec.drafted_tokens)
    assert spec.mean_accepted_length == pytest.approx(1 + spec.accepted_tokens / spec.drafts)
    # A token is accepted only with all before it.
    assert len(spec.acceptance_by_position) == DRAFTED
    assert all(earlier >= later for earlier, later in pairwise(spec.acceptance_by_position))
    assert sum(spec.acceptance_by_position) * spec.drafts == pytest.approx(spec.accepted_tokens)
    assert "spec-decode-random" in [verdict.id for verdict in stage.verdicts]
    others = [boxes[name].stages[0] for name in ("other weights", "other precision")]
    assert all(stage.engine is not None and stage.engine.spec is None for stage in others)


async def test_operations_bytes_and_the_reason_for_no_mfu(boxes: dict[str, Result]) -> None:
    (stage,) = boxes["speculating"].stages
    assert stage.engine is not None and stage.compute is not None
    assert stage.engine.hbm_bytes_per_s is not None and stage.engine.hbm_bytes_per_s > 0
    assert stage.compute.tflops_per_gpu > 0
    assert stage.compute.mfu_percent is None
    assert stage.compute.why is not None and "does not state its precision" in stage.compute.why
    unreported = boxes["other weights"].stages[0]
    assert unreported.compute is None
    assert unreported.engine is not None and "--enable-mfu-metrics" in unreported.engine.unavailable["tflops_per_gpu"]


async def test_output_of_each_box_does_not_drift(boxes: dict[str, Result]) -> None:
    for name, result in boxes.items():
        canary, (stage,) = result.canary, result.stages
        assert canary is not None and stage.canary is not None, name
        assert (canary.method, canary.requests.failed, canary.unchecked) == ("prompt_logprobs", 0, ()), name
        assert stage.canary.scores > 0 and stage.canary.answers > 0, name
        assert stage.canary.drift == pytest.approx(0, abs=0.01), name
        for text in canary.texts:
            assert text.idle_scores > 1 and text.after == pytest.approx(text.idle, abs=0.01), (name, text)
        # Random weights guess one of all 353 tokens.
        assert canary.perplexity == pytest.approx(353, rel=0.1), name
        assert output_verdicts(result) == [], name


def compared(boxes: dict[str, Result], other: str) -> OutputComparison:
    """With the speculating one, whose drafts change no output."""
    output = compare_output(boxes["speculating"].canary, boxes[other].canary, 0.95)
    assert output is not None and len(output.texts) > 3
    return output


async def test_compare_detects_other_weights(boxes: dict[str, Result]) -> None:
    output = compared(boxes, "other weights")
    assert {"better", "worse"} <= {text.word for text in output.texts}, (
        "of random weights none is better at all of them"
    )
    assert output.same_answers < output.answers


async def test_compare_detects_another_precision(boxes: dict[str, Result]) -> None:
    """A score moves by 1e-4 nats a token, where the same engine repeats it to the last bit."""
    output = compared(boxes, "other precision")
    assert {text.word for text in output.texts} == {"no evidence"}
    assert any("the two compute differently" in note for note in output.notes)
