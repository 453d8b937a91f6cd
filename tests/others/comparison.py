"""vramp's figures next to those of a client that shares no code with it, on the servers of others.

    VRAMP_VLLM_CACHE="$(sh tests/others/install.sh)" python -m tests.others.comparison [NAME...]     prints the table

One request at a time, the same prompts for both; half of the independent client's requests come before vramp's and
half after, so that both see the same machine.
"""

from __future__ import annotations

import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from loadgen.schema.result import Result, StageResult
from loadgen.store.runs import read_result
from tests.others.client import Answer, ask
from tests.others.servers import STARTS, Others, Served, first_at_a_core

ROOT = Path(__file__).parents[2]
REQUESTS, OSL = 16, 64
WORDS = "the quick brown fox jumps over the lazy dog and every stream waits for its turn at a server".split()
PROMPTS = [" ".join(WORDS[(start + 7 * at) % len(WORDS)] for at in range(64)) for start in range(REQUESTS)]
ENDPOINTS = ("completions", "chat")
_KEY = "KEY_OF_THE_TESTS"
_VERDICTS = {"stream-buffered": "`stream-buffered`", "itl-unknown": "ITL null", "tpot-unknown": "TPOT null for some"}
_NOTES = {
    "usage only at the end": "usage only at the end",
    "prompts of token ids": "no token ids",
    "ignore_eos": "no `ignore_eos`",
    "no engine metrics": "no `/metrics`",
    "/tokenize answered": "no `/tokenize`",
    "hardly any word": "no words of one token",
    "engine's version is unknown": "no `/version`",
}


class Ended(NamedTuple):
    """How a command of vramp ended."""

    code: int
    output: str
    result: Result | None

    @property
    def stage(self) -> StageResult:
        assert self.result is not None, self.output
        (stage,) = self.result.stages
        return stage

    @property
    def verdicts(self) -> set[str]:
        return {verdict.id for verdict in self.stage.verdicts}

    @property
    def notes(self) -> list[str]:
        """What it says that the server does not report."""
        assert self.result is not None, self.output
        return [event.text for event in self.result.events if event.kind in ("server", "engine")]


class Compared(NamedTuple):
    name: str
    endpoint: str
    vramp: Ended
    answers: list[Answer]

    @property
    def ttft_ms(self) -> tuple[float | None, float]:
        """Medians: vramp's and the other client's."""
        return self.vramp.stage.latency_ms["ttft"].p50, statistics.median(answer.ttft_ms for answer in self.answers)

    @property
    def tpot_ms(self) -> tuple[float | None, float]:
        return self.vramp.stage.latency_ms["tpot"].p50, statistics.median(answer.tpot_ms for answer in self.answers)


def run(served: Served, folder: Path, *options: str) -> Ended:
    """`vramp run` on a server, as an operator enters it."""
    command = [sys.executable, "-m", "tui.cli", "run", "--url", served.url, "--json", "result.json", "--workers", "1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    if served.key is not None:
        command += ["--api-key-env", _KEY]
        environment[_KEY] = served.key
    if served.authority is not None:
        environment["SSL_CERT_FILE"] = str(served.authority)
    path = folder / "result.json"
    path.unlink(missing_ok=True)
    done = subprocess.run(
        [*command, *options], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return Ended(done.returncode, done.stdout, read_result(path) if path.exists() else None)


def independent(served: Served, endpoint: str, prompts: Sequence[str]) -> list[Answer]:
    """The other client's answers, one after the other."""
    headers = {} if served.key is None else {"Authorization": f"Bearer {served.key}"}
    tls = None if served.authority is None else ssl.create_default_context(cafile=str(served.authority))
    path = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}[endpoint]
    fields = {"model": served.model, "max_tokens": OSL, "temperature": 0, "stream": True}
    fields |= {"stream_options": {"include_usage": True, "continuous_usage_stats": True}} | (
        {"ignore_eos": True} if served.knows_ignore_eos else {}
    )
    answers = []
    for prompt in prompts:
        own = {"prompt": prompt} if endpoint == "completions" else {"messages": [{"role": "user", "content": prompt}]}
        with first_at_a_core():
            answers.append(ask(served.url + path, fields | own, headers, tls))
    return answers


def compare(name: str, endpoint: str, served: Served, folder: Path) -> Compared:
    """The figures of both clients."""
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    load = f"--endpoint {endpoint} --data prompts.jsonl --osl {OSL} --concurrency 1 --requests {REQUESTS} --warmup 0"
    independent(served, endpoint, PROMPTS[:2])  # what is first is slow
    before = independent(served, endpoint, PROMPTS[::2])
    # Canaries would be in each other's way: the engine computes them together with the one request.
    ended = run(served, folder, *load.split(), "--set", "canary.enabled=false", "--set", "load.realtime=true")
    return Compared(name, endpoint, ended, before + independent(served, endpoint, PROMPTS[1::2]))


def rows(compared: Compared) -> Iterator[str]:
    """The cells of the table."""
    yield compared.name
    yield compared.endpoint
    for mine, other in (compared.ttft_ms, compared.tpot_ms):
        yield f"{'-' if mine is None else f'{mine:.1f}'} ({other:.1f})"
    found = [words for words in _NOTES if any(words in note for note in compared.vramp.notes)]
    yield ", ".join(_NOTES[words] for words in found) or "nothing"
    yield ", ".join(words for id, words in _VERDICTS.items() if id in compared.vramp.verdicts) or "-"


def main(names: Sequence[str]) -> None:
    print("| server | endpoint | TTFT, ms (other client) | TPOT, ms (other client) | not reported | verdicts |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="vramp-others-") as folder, ExitStack() as stack:
        others = Others(Path(folder), stack)
        for name in names or STARTS:
            for endpoint in ENDPOINTS:
                compared = compare(name, endpoint, others[name], others.folder)
                print(f"| {' | '.join(rows(compared))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
