"""Canaries: requests sent during the load, whose results are compared with what the idle engine returned before it.

Each server has its own canaries. Before the load, while the server is idle, every text is scored `IDLE_SCORES` times,
one after another, while each prompt is answered `IDLE_ANSWERS` times, with at most four requests open; after the load,
each is sent once more. This begins while the workers start, and delays the load by at most `IDLE_S`. During the load,
each server has at most one canary open, scores and answers alternating, spaced so that on average canaries hold at
most `MAX_STREAMS` streams, or `MAX_SHARE` of the load's streams if that is more.

Canaries use connections of this process, so they are in no worker's figures; their X-Request-Id begins with
`CANARY_ID`.

`canary_texts.json` has the texts for scoring: prose, code, arithmetic and two more languages, because a fault may
affect only part of the vocabulary; and prompts whose continuation is nearly certain, so that a greedy answer rarely
depends on a near tie. Never change one, or its scores are no longer comparable with earlier ones; add another instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from loadgen.errors import UNDECODABLE, ServerError
from loadgen.record.record import Record
from loadgen.schema.journal import CanaryMeasured, Line, ReferenceDisturbed
from loadgen.schema.output import CANARY_ID, CanaryKind, CanaryMoment, ScoreMethod
from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.server.vllm.client import ServerClient
from loadgen.stream import ending
from loadgen.stream.events import Usage

_KNOWN: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("canary_texts.json").read_text("utf-8"))
TEXTS, PROMPTS = _KNOWN["scored"], _KNOWN["answered"]
ANSWER_TOKENS = 16
METHODS: tuple[ScoreMethod, ...] = get_args(ScoreMethod)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
IDLE_SCORES, IDLE_ANSWERS = 3, 2
IDLE_S = 3.0
FIRST_S = 20.0  # for the first score: it may compile kernels, which should not happen under load either
MAX_STREAMS, MAX_SHARE = 0.1, 0.02
_TIMEOUT_S = 60.0
_LOOKS_APART_S = 0.1  # between the two checks for other clients' requests


class CanaryWatch:
    """Sends the canaries: `start` once the servers answer, `ready` before the load, `after` it, then `close`."""

    def __init__(
        self,
        clients: Sequence[ServerClient],
        record: Record,
        log: Callable[[Line], None],
        clock_s: Callable[[], float],
        *,
        model: str,
        options: Mapping[str, object],
        interval_s: float,
    ) -> None:
        """`options` are fields of the request body that the servers accept."""
        self.record = record
        self.log = log
        self.clock_s = clock_s
        self.model = model
        self.options = options
        self.interval_s = interval_s
        self.loaded = asyncio.Event()  # set while a stage with load runs
        self._servers = [_Server(self, number, client) for number, client in enumerate(clients)]
        self._task: asyncio.Task[None] | None = None
        self._idle_known = asyncio.Event()

    def start(self) -> None:
        """Send canaries to the idle servers, then continue under whatever load there is."""
        self._task = asyncio.create_task(self._run())

    async def ready(self) -> None:
        """Wait until the load may begin; idle canaries not answered by then are not compared."""
        await self._idle_known.wait()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(FIRST_S):
                await self._each(_Server.look_for_others)
                await self._each(_Server.find_method)
            await self._idle("before", IDLE_SCORES, IDLE_ANSWERS)
        except TimeoutError:
            pass  # what was answered until then is compared
        finally:
            self._idle_known.set()
        await self._each(_Server.during_load)

    async def _each(self, action: Callable[[_Server], Awaitable[None]]) -> None:
        await asyncio.gather(*(action(server) for server in self._servers))

    async def _idle(self, when: CanaryMoment, scores: int, answers: int) -> None:
        async with asyncio.timeout(IDLE_S):
            await self._each(lambda server: server.idle(when, scores, answers))

    def boundary(self) -> None:
        """Note that a stage ended, began, or both."""
        stage = self.record.current
        if stage is not None and stage.started.concurrency != 0:
            self.loaded.set()
        else:
            self.loaded.clear()

    async def after(self) -> None:
        """Send canaries once the servers are idle again; none if there was no load."""
        if self.record.stages:
            # Open canaries are waited for only for a limited time.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * IDLE_S), self.silence():
                    await self._idle("after", 1, 1)

    @contextlib.asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        """Suppress canaries within this context; waits for open ones first."""
        async with contextlib.AsyncExitStack() as turns:
            for server in self._servers:
                await turns.enter_async_context(server.turn)
            yield

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class _Server:
    def __init__(self, watch: CanaryWatch, number: int, client: ServerClient) -> None:
        self._watch = watch
        self._number = number
        self._client = client
        self._method: ScoreMethod | None = None
        self.turn = asyncio.Lock()  # held while a canary under load is open

    async def idle(self, when: CanaryMoment, scores: int, answers: int) -> None:
        texts = list(TEXTS) * scores
        await asyncio.gather(
            self._send_all("score", texts[1:] if when == "before" else texts, when),
            *(self._send_all("greedy", [name] * answers, when) for name in PROMPTS),
        )
        if when == "before":
            await self.look_for_others()

    async def look_for_others(self) -> None:
        """Report other clients' requests while none of ours is open; two checks must agree, as gauges may be stale."""
        seen: list[float] = []
        for _ in range(2):
            try:
                page = await self._client.metrics_text()
                sample = await asyncio.to_thread(parse_engine_metrics, page)
            except ServerError:
                return  # the engine watch reports others continuously
            if not sample.open_requests:
                return
            seen.append(sample.open_requests)
            await asyncio.sleep(_LOOKS_APART_S)
        self._watch.log(ReferenceDisturbed(t_s=self._watch.clock_s(), others=min(seen), instance=self._number))

    async def find_method(self) -> None:
        """Score the first text by the first method that the server supports; without one, report why for each."""
        refused = []
        for method in METHODS:
            line = await self._send("score", next(iter(TEXTS)), "before", method)
            if not line.problem:
                self._method = method
                self._watch.log(line)
                return
            refused.append(line)
        for line in refused:
            self._watch.log(line)

    async def _send_all(self, kind: CanaryKind, names: Sequence[str], when: CanaryMoment) -> None:
        for name in names:
            if kind == "greedy" or self._method is not None:
                self._watch.log(await self._send(kind, name, when, self._method))

    async def during_load(self) -> None:
        """Send texts to score and prompts to answer, alternately and one at a time, while there is a load."""
        watch = self._watch
        kinds: list[CanaryKind] = ["greedy"] if self._method is None else ["score", "greedy"]
        names = {"score": cycle(TEXTS), "greedy": cycle(PROMPTS)}
        for kind in cycle(kinds):
            await watch.loaded.wait()
            async with self.turn:
                began_s = watch.clock_s()
                watch.log(await self._send(kind, next(names[kind]), "load", self._method))
                took_s = watch.clock_s() - began_s
            most = max(MAX_STREAMS, MAX_SHARE * watch.record.open_streams)
            await asyncio.sleep(max(watch.interval_s - took_s, took_s * (1 / most - 1)))

    @property
    def _stage(self) -> int | None:
        current = self._watch.record.current
        return current.started.index if current is not None else None

    async def _send(
        self, kind: CanaryKind, name: str, when: CanaryMoment, method: ScoreMethod | None
    ) -> CanaryMeasured:
        """Send one canary; returns the outcome."""
        began_s, stage = self._watch.clock_s(), self._stage if when == "load" else None
        line = CanaryMeasured(t_s=began_s, name=name, kind=kind, when=when, instance=self._number)
        what = f"{method} of {name}" if kind == "score" else f"answer to {name}"
        try:
            line = await (self._scored(line, method) if kind == "score" and method else self._answered(line, method))
        except (ServerError, ValueError) as error:
            line = replace(line, problem=f"{what}: {error}")
        except asyncio.CancelledError:
            waited_s = self._watch.clock_s() - began_s
            if when == "load" and waited_s >= IDLE_S:
                problem = f"{what}: no complete answer in {waited_s:.0f} s, until the run ended"
                self._watch.log(self._ended(replace(line, problem=problem), stage))
            raise
        return self._ended(line, stage)

    def _ended(self, line: CanaryMeasured, stage: int | None) -> CanaryMeasured:
        """It belongs to a stage only if that was the same all along."""
        return replace(line, t_s=self._watch.clock_s(), index=stage if stage == self._stage else None)

    async def _scored(self, line: CanaryMeasured, method: ScoreMethod) -> CanaryMeasured:
        content, first_s = await self._post(score_request(method, self._watch.model, TEXTS[line.name]))
        score = read_score(method, content)
        return replace(
            line,
            method=method,
            score=score.mean,
            scored_tokens=score.scored,
            input_tokens=score.tokens,
            output_tokens=score.output_tokens,
            ttft_ms=first_s * 1000,
        )

    async def _answered(self, line: CanaryMeasured, method: ScoreMethod | None) -> CanaryMeasured:
        watch, chat = self._watch, method == "chat"
        content, first_s = await self._post(answer_request(PROMPTS[line.name], watch.model, watch.options, chat=chat))
        text, usage, *_ = read_answer(content)
        return replace(
            line,
            answer=text,
            input_tokens=usage.prompt_tokens or 0,
            output_tokens=usage.completion_tokens or 0,
            ttft_ms=first_s * 1000,
        )

    async def _post(self, request: tuple[str, dict[str, Any]]) -> tuple[bytes, float]:
        path, body = request
        mark = {"X-Request-Id": f"{CANARY_ID}{secrets.token_hex(8)}"}
        return await self._client.answer(path, body, headers=mark, timeout_s=_TIMEOUT_S)


class Score(NamedTuple):
    """The mean log probability of a text's tokens, in nats a token."""

    mean: float
    scored: int
    tokens: int  # in the prompt; all but the first can be scored
    output_tokens: int


def score_request(method: ScoreMethod, model: str, text: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a request that scores a text; generates one token, because some servers require it."""
    body: dict[str, Any] = {"model": model, "max_tokens": 1, "temperature": 0}
    if method == "chat":
        return CHAT, body | {"messages": [{"role": "user", "content": text}], "prompt_logprobs": 0}
    scored = {"prompt_logprobs": 0} if method == "prompt_logprobs" else {"echo": True, "logprobs": 1}
    return COMPLETIONS, body | {"prompt": text} | scored


def answer_request(prompt: str, model: str, options: Mapping[str, object], *, chat: bool) -> tuple[str, dict[str, Any]]:
    """Path and body of a greedy answer, streamed so that its first token has a time."""
    body = {"model": model, "max_tokens": ANSWER_TOKENS, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}, **options}
    if chat:
        return CHAT, body | {"messages": [{"role": "user", "content": prompt}]}
    return COMPLETIONS, body | {"prompt": prompt}


class _Logprob(msgspec.Struct):
    logprob: float | None = None


_Prompt = list[dict[str, _Logprob] | None]


class _Tokens(msgspec.Struct):
    token_logprobs: list[float | None] = []


class _ScoredChoice(msgspec.Struct):
    prompt_logprobs: _Prompt | None = None
    logprobs: _Tokens | None = None


class _Scored(msgspec.Struct):
    choices: list[_ScoredChoice] = []
    prompt_logprobs: _Prompt | None = None  # for chat requests
    usage: Usage | None = None


def read_score(method: ScoreMethod, content: bytes) -> Score:
    """The score in an answer; raises `ValueError` if there is none, or an impossible one."""
    failed = ending.read_answer(content).failed
    # What is scored is the prompt: no more is needed of the answer than that the engine did not give it up.
    if failed is not None and failed.kind in ("aborted", "engine_error", "finish_reason"):
        raise ValueError(f"the answer failed: {failed.message}")
    try:
        scored = msgspec.json.decode(content, type=_Scored)
    except UNDECODABLE as error:
        raise ValueError(f"the answer is not that of a completion: {error}") from None
    usage = scored.usage or Usage()
    values = _values(method, scored, usage.prompt_tokens or 0)
    known = [value for value in values if value is not None]
    if not known:
        raise ValueError("the answer has no log probabilities of the prompt")
    if not all(math.isfinite(value) and value <= 0 for value in known):
        raise ValueError("the answer has log probabilities above 0, or that are no numbers")
    return Score(sum(known) / len(known), len(known), len(values), usage.completion_tokens or 0)


def _values(method: ScoreMethod, scored: _Scored, prompt_tokens: int) -> Sequence[float | None]:
    choice = next(iter(scored.choices), _ScoredChoice())
    if method == "echo":
        echoed = choice.logprobs.token_logprobs if choice.logprobs is not None else []
        # Only the prompt, without the token generated after it.
        return echoed[: prompt_tokens or len(echoed) - 1]
    entries = choice.prompt_logprobs if method == "prompt_logprobs" else scored.prompt_logprobs
    # The prompt's own token comes first, before likelier ones.
    return [next(iter(entry.values())).logprob if entry else None for entry in entries or ()]


def read_answer(content: bytes) -> ending.Answer:
    """The answer in an event stream; raises `ValueError` if it failed, as a stream of the load would have."""
    answer = ending.read_answer(content)
    if answer.failed is not None:
        raise ValueError(f"the answer failed: {answer.failed.message}")
    return answer
