"""Live sessions under any order of answers, failures and changes: each request once, and none too early."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.schema.deltas import SESSION_COUNTERS
from loadgen.stream.events import PromptDetails, Usage
from loadgen.stream.samples import StageSamples
from loadgen.stream.stream import Stream
from loadgen.worker.sessions import LiveSessions
from loadgen.workload.prompts import FALLBACK_IDS, token_prompts
from loadgen.workload.sessions.ceiling import Ceilings
from loadgen.workload.sessions.data import SessionData, SessionReader, Sessions

PROMPTS = token_prompts(FALLBACK_IDS, 5)
SHORT = Sessions(
    data=SessionData(form="generated", sessions=50, seed=2, scale=0.001),
    max_gap_s=0.0,
    start=(0.0, 1.0),
)
USAGE_WITHOUT_HITS = Usage(prompt_tokens=100, prompt_tokens_details=PromptDetails(cached_tokens=0))
tree = cache(SessionReader(SHORT.data).tree)
moves = st.lists(
    st.tuples(st.sampled_from(["send", "send", "answer", "answer", "fail", "resize"]), st.integers(0, 7)), max_size=80
)


class Player:
    """Sends what is due, and ends what is open, in the order that a test chooses."""

    def __init__(self) -> None:
        self.sessions = LiveSessions(
            SHORT, PROMPTS, lambda: None, seed=1, worker=0, kv_tokens=None, serials=count(), ceilings=Ceilings()
        )
        self.open: list[tuple[int, int]] = []
        self.sent: set[tuple[int, int]] = set()
        self.counts = Counter[str]()
        self.wanted = 0

    def move(self, what: str, number: int) -> None:
        if what == "resize":
            self.wanted = number
            self.sessions.resize(number)
        elif what == "send" and self.sessions.due:
            traces = {row.session: row.trace for row in self.sessions.now().rows}
            due, _ = self.sessions.take()
            request = due.session, due.request
            before = tree(traces[due.session]).requests[due.request].after
            assert request not in self.sent
            assert not any((due.session, earlier) in self.open for earlier in before)
            self.sent.add(request)
            self.open.append(request)
        elif what in ("answer", "fail") and self.open:
            request = self.open.pop(number % len(self.open))
            stream = Stream(stage=0, samples=StageSamples(), wire=b"", intended_ns=0, request=request)
            stream.completed = what == "answer"
            self.sessions.ended(stream)

    def count(self) -> None:
        delta = self.sessions.drain(None, 0)
        self.counts.update({name: getattr(delta, name) for name in SESSION_COUNTERS})

    def check(self) -> None:
        self.count()
        now, counts = self.sessions.now(), self.counts
        assert len(now.rows) == now.live
        assert sum(row.context_tokens for row in now.rows) == now.context_tokens
        assert now.live <= self.wanted
        assert now.stopped <= len({session for session, _ in self.open})
        assert counts["begun"] == now.live + sum(counts[name] for name in ("finished", "cut", "over_context", "failed"))
        assert counts["primed"] <= len(self.sent)


@settings(deadline=None)
@given(moves)
def test_any_order_of_answers_and_changes(chosen: Sequence[tuple[str, int]]) -> None:
    async def play() -> None:
        player = Player()
        player.move("resize", 4)
        for what, number in chosen:
            player.move(what, number)
            await asyncio.sleep(0)  # the next session begins from the loop
            player.check()

    asyncio.run(play())


async def test_a_session_begins_where_one_has_finished() -> None:
    player = Player()
    player.move("resize", 2)
    async with asyncio.timeout(30):
        while player.counts["finished"] < 3:
            player.move("send", 0)
            player.move("answer", 0)
            await asyncio.sleep(0)
            player.check()
    assert player.sessions.live + player.counts["finished"] == player.counts["begun"]


async def test_requests_that_prime_are_not_in_the_cached_share() -> None:
    player = Player()
    player.move("resize", 4)
    assert any(due.primes for due in player.sessions.due)
    while player.sessions.due:
        due, _ = player.sessions.take()
        if due.primes:
            stream = Stream(
                stage=0, samples=StageSamples(), wire=b"", intended_ns=0, request=(due.session, due.request)
            )
            stream.completed, stream.usage = True, USAGE_WITHOUT_HITS
            player.sessions.ended(stream)
    assert {row.cached_share for row in player.sessions.now().rows} == {None}


async def test_each_session_that_began_in_a_stage_is_timed_or_censored_once() -> None:
    """Unless it began inside: then its duration is not that of a whole session."""
    player = Player()
    finished = []
    for live in (2, 3, 1):
        samples = StageSamples(is_open=False)
        player.sessions.begin_stage(samples, live, rank=0, ranks=1)
        player.wanted = live
        samples.open()
        player.counts.clear()
        while player.counts["finished"] < 3:
            player.move("send", 0)
            player.move("answer", 0)
            await asyncio.sleep(0)
            player.count()
        while player.sessions.due:
            player.move("send", 0)
        player.sessions.resize(live - 1)
        player.sessions.end_stage()
        player.count()
        whole = player.counts["begun"] - player.counts["begun_inside"]
        assert len(samples.session_time_ns) + len(samples.session_time_censored_ns) == whole
        finished.append((player.counts["finished"], len(samples.session_time_ns)))
    assert all(all_finished >= timed > 0 for all_finished, timed in finished)


async def test_what_sessions_hold_is_integrated_up_to_the_end_of_the_window() -> None:
    player = Player()
    player.move("resize", 3)
    tokens = player.sessions.now().context_tokens
    began_ns = time.monotonic_ns()
    counts = player.sessions.drain(began_ns, began_ns + 2_000_000_000)
    assert (counts.live_ms, counts.context_ms) == (6000, 2000 * tokens)
    assert player.sessions.drain(began_ns, began_ns + 2_000_000_000).live_ms == 0
