"""vramp's figures on the servers of others, next to those of a client that shares no code with it.

The bounds allow for a busy machine; a reading of another kind breaks them: what a buffer adds, or TPOT ten times off.
"""

from pathlib import Path

import pytest

from tests.others.comparison import ENDPOINTS, OSL, REQUESTS, Compared, compare
from tests.others.servers import STARTS, Others

pytestmark = [pytest.mark.others, pytest.mark.timeout(900)]

GATHERED = {"HAProxy, default", "nginx, TLS, default buffering"}
"""HAProxy leaves Nagle's algorithm on; nginx fills whole TLS records, unless it is not to buffer."""
NO_METRICS = {"nginx, key, prefix, only /v1", "LiteLLM", "transformers serve", "guidellm's mock server"}
LATE_USAGE = {"vllm-router", "LiteLLM", "transformers serve", "guidellm's mock server"}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("name", STARTS)
def test_the_figures_are_those_of_the_independent_client(
    others: Others, name: str, endpoint: str, tmp_path: Path
) -> None:
    compared = compare(name, endpoint, others[name], tmp_path)
    require_completed(compared)
    ttft_ms, other_ttft_ms = compared.ttft_ms
    assert ttft_ms == pytest.approx(other_ttft_ms, abs=40, rel=0.75)
    require_buffering_named_rightly(compared)
    if name not in GATHERED:
        tpot_ms, other_tpot_ms = compared.tpot_ms
        assert tpot_ms is not None
        assert 0.2 < tpot_ms / other_tpot_ms < 5.0
    require_metrics_or_the_reason(compared)


def require_buffering_named_rightly(compared: Compared) -> None:
    """What gathers is seen, and called so unless the host is full; what does not gather is never called so."""
    bursts = compared.vramp.stage.bursts
    if compared.name in GATHERED:
        assert bursts is not None and bursts.share > 0.5 and bursts.held_back is not False, bursts
    else:
        assert "stream-buffered" not in compared.vramp.verdicts, bursts


def require_completed(compared: Compared) -> None:
    ended = compared.vramp
    assert ended.code == 0, ended.output
    requests, tokens = ended.stage.requests, ended.stage.tokens
    assert (requests.sent, requests.completed, requests.failed) == (REQUESTS, REQUESTS, 0)
    assert (tokens.source, tokens.output) == ("usage", REQUESTS * OSL)
    assert {answer.tokens for answer in compared.answers} == {OSL}


def require_metrics_or_the_reason(compared: Compared) -> None:
    reasons = [note for note in compared.vramp.notes if "no engine metrics: " in note and "/metrics answered" in note]
    assert len(reasons) == (compared.name in NO_METRICS), compared.vramp.notes
    assert (compared.vramp.stage.engine is None) == (compared.name in NO_METRICS)
    late = [note for note in compared.vramp.notes if "sends usage only at the end" in note]
    assert len(late) <= (compared.name in LATE_USAGE), compared.vramp.notes


def test_the_pace_that_a_server_is_set_to(others: Others, tmp_path: Path) -> None:
    """guidellm's mock server waits 60 ms for the first token, and 10 ms for each other."""
    compared = compare("guidellm's mock server", "completions", others["guidellm's mock server"], tmp_path)
    stage = compared.vramp.stage
    assert 55 < (stage.latency_ms["ttft"].p50 or 0.0) < 120
    assert 9.5 < (stage.latency_ms["tpot"].p50 or 0.0) < 20
