"""Canaries: requests beside the load whose right outcome the idle engine gave before it.

Each server is asked by itself. Idle, before the load: every text is scored `IDLE_SCORES` times, one after another, and
beside that each prompt is answered `IDLE_ANSWERS` times, so that four requests at most are open; after the load once
more. This begins while the workers start, and the load waits at most `IDLE_S` for it. Beside a load a server has one
canary at a time, a score and an answer in turn, and so seldom that canaries hold no more than `MOST_STREAMS` streams on
average, or `MOST_SHARE` of the load's where that is more.

Canaries go over connections of this process, so nothing of them is in a worker's figures; their X-Request-Id begins
with `CANARY_ID`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from loadgen.errors import ServerError
from loadgen.metrics.canary import CANARY_ID, CanaryKind, CanaryMoment, ScoreMethod
from loadgen.metrics.journal import CanaryMeasured, Line, ReferenceDisturbed
from loadgen.metrics.record import Record
from loadgen.run.canary_requests import (
    METHODS,
    PROMPTS,
    TEXTS,
    answer_request,
    read_answer,
    read_score,
    score_request,
)
from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.server.vllm.client import Answer, ServerClient

IDLE_SCORES, IDLE_ANSWERS = 3, 2
IDLE_S = 3.0
FIRST_S = 20.0  # for the first score: kernels may be compiled for it, which no load should meet either
MOST_STREAMS, MOST_SHARE = 0.1, 0.02
_TIMEOUT_S = 60.0
_LOOKS_APART_S = 0.1


class CanaryWatch:
    """`start` once the servers answer, `ready` before the load, `after` it, and `close`."""

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
        """`options` are fields of a request's body that the servers take."""
        self._loaded = asyncio.Event()  # a stage with load runs
        self._servers = [
            _Server(number, each, record, log, clock_s, self._loaded, model=model, options=options)
            for number, each in enumerate(clients)
        ]
        self._record = record
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._idle_known = asyncio.Event()

    def start(self) -> None:
        """Ask the idle servers, then go on beside whatever load there is."""
        self._task = asyncio.create_task(self._go())

    async def ready(self) -> None:
        """Wait until the load may begin: what the idle servers have not said by then is not compared."""
        await self._idle_known.wait()

    async def _go(self) -> None:
        try:
            await self._ask_idle("before", IDLE_SCORES, IDLE_ANSWERS)
        finally:
            self._idle_known.set()
        await asyncio.gather(*(server.beside_load(self._interval_s) for server in self._servers))

    def boundary(self) -> None:
        """A stage ended, or began, or both."""
        stage = self._record.current
        if stage is not None and stage.started.concurrency != 0:
            self._loaded.set()
        else:
            self._loaded.clear()

    async def after(self) -> None:
        """What they say once they are idle again; nothing where there was no load."""
        if self._record.stages:
            # What is still under way is not waited for longer than it is worth.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2 * IDLE_S), self.silence():
                    await self._ask_idle("after", 1, 1)

    async def _ask_idle(self, when: CanaryMoment, scores: int, answers: int) -> None:
        with contextlib.suppress(TimeoutError):
            if when == "before":
                async with asyncio.timeout(FIRST_S):
                    await asyncio.gather(*(server.look_for_others() for server in self._servers))
                    await asyncio.gather(*(server.find_method() for server in self._servers))
            async with asyncio.timeout(IDLE_S):
                await asyncio.gather(*(server.idle(when, scores, answers) for server in self._servers))

    @contextlib.asynccontextmanager
    async def silence(self) -> AsyncIterator[None]:
        """While nothing is sent beside the load: what is under way is waited for."""
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
    """The canaries of one server."""

    def __init__(
        self,
        number: int,
        client: ServerClient,
        record: Record,
        log: Callable[[Line], None],
        clock_s: Callable[[], float],
        loaded: asyncio.Event,
        *,
        model: str,
        options: Mapping[str, object],
    ) -> None:
        self._number = number
        self._client = client
        self._model = model
        self._options = options
        self._record = record
        self._log = log
        self._clock_s = clock_s
        self._loaded = loaded
        self._method: ScoreMethod | None = None
        self.turn = asyncio.Lock()  # held while a canary beside the load is open

    async def idle(self, when: CanaryMoment, scores: int, answers: int) -> None:
        texts = list(TEXTS) * scores
        await asyncio.gather(
            self._send_all("score", texts[1:] if when == "before" else texts, when),
            *(self._send_all("greedy", [name] * answers, when) for name in PROMPTS),
        )
        if when == "before":
            await self.look_for_others()

    async def look_for_others(self) -> None:
        """Nothing of ours is open: tell of what is. Two looks agree, as an engine's gauges may be a moment old."""
        seen: list[float] = []
        for _ in range(2):
            try:
                page = await self._client.metrics_text()
                sample = None if page is None else await asyncio.to_thread(parse_engine_metrics, page)
            except ServerError:
                return  # who reads the engine all the time tells of it
            if sample is None or not sample.open_requests:
                return
            seen.append(sample.open_requests)
            await asyncio.sleep(_LOOKS_APART_S)
        self._log(ReferenceDisturbed(t_s=self._clock_s(), others=min(seen), instance=self._number))

    async def find_method(self) -> None:
        """Score the first text in the first way that the server has; without one, why not is told of each."""
        refused = []
        for method in METHODS:
            line = await self._canary("score", next(iter(TEXTS)), "before", method)
            if not line.problem:
                self._method = method
                self._log(line)
                return
            refused.append(line)
        for line in refused:
            self._log(line)

    async def _send_all(self, kind: CanaryKind, names: Sequence[str], when: CanaryMoment) -> None:
        for name in names:
            if kind == "greedy" or self._method is not None:
                self._log(await self._canary(kind, name, when, self._method))

    async def beside_load(self, interval_s: float) -> None:
        """One at a time, for as long as there is a load to be beside."""
        turns = _in_turn(scored=self._method is not None)
        while True:
            await self._loaded.wait()
            async with self.turn:
                took_s = await self._take_turn(*next(turns))
            most = max(MOST_STREAMS, MOST_SHARE * self._record.open_streams)
            await asyncio.sleep(max(interval_s - took_s, took_s * (1 / most - 1)))

    async def _take_turn(self, kind: CanaryKind, name: str) -> float:
        """Send one beside the load, and say how long it was open."""
        began_s = self._clock_s()
        self._log(await self._canary(kind, name, "load", self._method))
        return self._clock_s() - began_s

    @property
    def _stage(self) -> int | None:
        return self._record.current.started.index if self._record.current is not None else None

    async def _canary(
        self, kind: CanaryKind, name: str, when: CanaryMoment, method: ScoreMethod | None
    ) -> CanaryMeasured:
        """Send one, and what came of it."""
        index = self._stage if when == "load" else None
        try:
            found = await (self._score(name, method) if kind == "score" and method else self._answer(name))
        except (ServerError, ValueError) as error:
            found = {"problem": f"{method} of {name}: {error}" if kind == "score" else f"answer to {name}: {error}"}
        return CanaryMeasured(
            t_s=self._clock_s(),
            name=name,
            kind=kind,
            when=when,
            index=index if index == self._stage else None,
            instance=self._number,
            **found,
        )

    async def _score(self, name: str, method: ScoreMethod) -> dict[str, Any]:
        answer = await self._send(*score_request(method, self._model, TEXTS[name]))
        score = read_score(method, answer.content)
        return {
            "method": method,
            "score": score.mean,
            "scored_tokens": score.scored,
            "input_tokens": score.tokens,
            "output_tokens": score.output_tokens,
            "ttft_ms": answer.first_s * 1000,
        }

    async def _answer(self, name: str) -> dict[str, Any]:
        chat = self._method == "chat"
        answer = await self._send(*answer_request(PROMPTS[name], self._model, self._options, chat=chat))
        text, input_tokens, output_tokens = read_answer(answer.content)
        return {
            "answer": text,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "ttft_ms": answer.first_s * 1000,
        }

    async def _send(self, path: str, body: dict[str, Any]) -> Answer:
        mark = {"X-Request-Id": f"{CANARY_ID}{secrets.token_hex(8)}"}
        return await self._client.answer(path, body, headers=mark, timeout_s=_TIMEOUT_S)


def _in_turn(*, scored: bool) -> Iterator[tuple[CanaryKind, str]]:
    """A text to score and a prompt to answer, by turns; only prompts where nothing is scored."""
    for text, prompt in zip(cycle(TEXTS), cycle(PROMPTS), strict=False):
        if scored:
            yield "score", text
        yield "greedy", prompt
