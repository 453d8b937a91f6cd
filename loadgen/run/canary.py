"""Canaries: requests sent during the load, whose results are compared with what the idle engine returned before it.

Each server has its own canaries. Before the load, while the server is idle, every text is scored `IDLE_SCORES` times,
one after another, while each prompt is answered `IDLE_ANSWERS` times, with at most four requests open; after the load,
each is sent once more. This begins while the workers start, and delays the load by at most `IDLE_S`. During the load,
each server has at most one canary open, scores and answers alternating, spaced so that on average canaries hold at
most `MAX_STREAMS` streams, or `MAX_SHARE` of the load's streams if that is more.

Canaries use connections of this process, so they are in no worker's figures; their X-Request-Id begins with
`CANARY_ID`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

from loadgen.errors import ServerError
from loadgen.record.record import Record
from loadgen.run.canary_requests import (
    METHODS,
    PROMPTS,
    TEXTS,
    answer_request,
    read_answer,
    read_score,
    score_request,
)
from loadgen.schema.canary import CANARY_ID, CanaryKind, CanaryMoment, ScoreMethod
from loadgen.schema.journal import CanaryMeasured, Line, ReferenceDisturbed
from loadgen.server.engines.sample import parse_engine_metrics
from loadgen.server.vllm.client import Answer, ServerClient

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
        self._loaded = asyncio.Event()  # set while a stage with load runs
        self._servers = [
            _Server(number, each, record, log, clock_s, self._loaded, model=model, options=options)
            for number, each in enumerate(clients)
        ]
        self._record = record
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None
        self._idle_known = asyncio.Event()

    def start(self) -> None:
        """Send canaries to the idle servers, then continue beside whatever load there is."""
        self._task = asyncio.create_task(self._go())

    async def ready(self) -> None:
        """Wait until the load may begin; idle canaries not answered by then are not compared."""
        await self._idle_known.wait()

    async def _go(self) -> None:
        try:
            await self._ask_idle("before", IDLE_SCORES, IDLE_ANSWERS)
        finally:
            self._idle_known.set()
        await asyncio.gather(*(server.during_load(self._interval_s) for server in self._servers))

    def boundary(self) -> None:
        """Note that a stage ended, began, or both."""
        stage = self._record.current
        if stage is not None and stage.started.concurrency != 0:
            self._loaded.set()
        else:
            self._loaded.clear()

    async def after(self) -> None:
        """Send canaries once the servers are idle again; none if there was no load."""
        if self._record.stages:
            # Open canaries are waited for only for a limited time.
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
        self._log(ReferenceDisturbed(t_s=self._clock_s(), others=min(seen), instance=self._number))

    async def find_method(self) -> None:
        """Score the first text by the first method that the server supports; without one, report why for each."""
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

    async def during_load(self, interval_s: float) -> None:
        """Send one canary at a time while there is a load."""
        turns = _in_turn(scored=self._method is not None)
        while True:
            await self._loaded.wait()
            async with self.turn:
                took_s = await self._take_turn(*next(turns))
            most = max(MAX_STREAMS, MAX_SHARE * self._record.open_streams)
            await asyncio.sleep(max(interval_s - took_s, took_s * (1 / most - 1)))

    async def _take_turn(self, kind: CanaryKind, name: str) -> float:
        """Send one canary beside the load; returns how long it was open."""
        began_s = self._clock_s()
        self._log(await self._canary(kind, name, "load", self._method))
        return self._clock_s() - began_s

    @property
    def _stage(self) -> int | None:
        return self._record.current.started.index if self._record.current is not None else None

    async def _canary(
        self, kind: CanaryKind, name: str, when: CanaryMoment, method: ScoreMethod | None
    ) -> CanaryMeasured:
        """Send one canary; returns the outcome."""
        index = self._stage if when == "load" else None
        began_s = self._clock_s()

        def measured(found: dict[str, Any]) -> CanaryMeasured:
            still = index if index == self._stage else None
            now_s, number = self._clock_s(), self._number
            return CanaryMeasured(t_s=now_s, name=name, kind=kind, when=when, index=still, instance=number, **found)

        what = f"{method} of {name}" if kind == "score" else f"answer to {name}"
        try:
            return measured(await (self._score(name, method) if kind == "score" and method else self._answer(name)))
        except (ServerError, ValueError) as error:
            return measured({"problem": f"{what}: {error}"})
        except asyncio.CancelledError:
            waited_s = self._clock_s() - began_s
            if when == "load" and waited_s >= IDLE_S:
                problem = f"{what}: no complete answer in {waited_s:.0f} s, until the run ended"
                self._log(measured({"problem": problem}))
            raise

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
    """Texts to score and prompts to answer, alternately; only prompts if scoring is not supported."""
    for text, prompt in zip(cycle(TEXTS), cycle(PROMPTS), strict=False):
        if scored:
            yield "score", text
        yield "greedy", prompt
