"""Nothing vanishes: whatever streams, stages and ends do, on several workers, every request is accounted for."""

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loadgen.metrics.stage import StageMetrics
from loadgen.schema.deltas import OUTCOMES, StageDelta
from loadgen.stream.samples import ClientSamples
from loadgen.stream.stream import Stream
from loadgen.worker.stage_run import StageRun
from tests.worker.test_stage_run import PROMPTS, command_of

WORKERS = 2
some = st.integers(0, 10**6)


class Accounting(RuleBasedStateMachine):
    """Two workers, driven as `Driver` drives them, with streams that end in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[list[StageRun]] = [[] for _ in range(WORKERS)]
        self.streams: list[list[Stream]] = [[] for _ in range(WORKERS)]
        self.metrics: dict[int, StageMetrics] = {}
        self.ends: set[tuple[int, int]] = set()
        self.index = -1
        self.at_ns = 0

    def teardown(self) -> None:
        # A run refers to its machine: without this, the histograms of every example stay until the collector comes by.
        self.runs.clear()
        self.metrics.clear()

    # What a worker is told.

    @rule(waits=st.booleans(), apart=st.booleans(), requests=st.none() | st.integers(1, 20))
    def begin(self, waits: bool, apart: bool, requests: int | None) -> None:
        self.end(unsent=0)
        self.index += 1
        for worker in range(WORKERS):
            command = msgspec.structs.replace(
                command_of(worker, WORKERS, requests=requests),
                index=self.index,
                waits=waits and requests is None,
                first_wave_apart=apart,
            )
            run = StageRun(command, PROMPTS, ClientSamples(), 5)
            run.begin(self.streams[worker])
            run.measure_by_time(lambda worker=worker: self.streams[worker])  # type: ignore[misc]
            self.runs[worker].append(run)

    @rule(worker=st.integers(0, WORKERS - 1))
    def open_window(self, worker: int) -> None:
        if self.runs[worker]:
            self.runs[worker][-1].open_window(self.streams[worker])

    @rule(unsent=st.integers(0, 3))
    def end(self, unsent: int) -> None:
        for worker in range(WORKERS):
            if self.runs[worker] and not self.ended(worker):
                self.runs[worker][-1].end(self.streams[worker], [0] * unsent)
                self.ends.add((worker, self.index))

    def ended(self, worker: int) -> bool:
        return (worker, self.index) in self.ends

    # What streams do.

    @rule(worker=st.integers(0, WORKERS - 1))
    def send(self, worker: int) -> None:
        if not self.runs[worker] or self.ended(worker) or self.runs[worker][-1].exhausted:
            return
        run = self.runs[worker][-1]
        stream = run.next_stream(0)
        stream.sent_ns = self.at_ns = self.at_ns + 1
        run.open += 1
        run.open_sent += stream.measured
        self.streams[worker].append(stream)

    @rule(worker=st.integers(0, WORKERS - 1), which=some, tokens=st.integers(1, 12))
    def receive(self, worker: int, which: int, tokens: int) -> None:
        if not self.streams[worker]:
            return
        stream = self.streams[worker][which % len(self.streams[worker])]
        for _ in range(tokens):
            self.at_ns += 1_000_000
            if not stream.first_ns:
                stream.record_first_token(self.at_ns, 1)
            stream.tokens += 1
            stream.last_ns = self.at_ns

    @rule(worker=st.integers(0, WORKERS - 1), which=some, how=st.sampled_from(["finish", "fail", "cancel", "cut_off"]))
    def over(self, worker: int, which: int, how: str) -> None:
        if not self.streams[worker]:
            return
        stream = self.streams[worker].pop(which % len(self.streams[worker]))
        if how == "fail" or (how == "finish" and not stream.first_ns):
            stream.fail("reset", "gone")
        elif how == "finish":
            stream.finish()
        else:
            getattr(stream, how)(self.at_ns)
        self.runs[worker][stream.stage].note_end(stream)

    @precondition(lambda self: self.index >= 0)
    @rule()
    def tick(self) -> None:
        for worker in range(WORKERS):
            for index, run in enumerate(self.runs[worker]):
                self.add(index, run.drain())

    def add(self, index: int, delta: StageDelta) -> None:
        self.metrics.setdefault(index, StageMetrics()).add(delta)

    @invariant()
    def nothing_vanishes(self) -> None:
        if self.index < 0:
            return
        self.tick()
        for index, metrics in self.metrics.items():
            counters = metrics.counters
            still_open = sum(runs[index].open_sent for runs in self.runs)
            assert counters["sent"] == sum(counters[name] for name in OUTCOMES) + still_open
            assert sum(metrics.errors.values()) == counters["failed"] + counters["carried_failed"]
            known = {name: histogram.count for name, histogram in metrics.latency.items()}
            assert known.get("e2e", 0) <= counters["completed"]
            assert known.get("ttft", 0) + known.get("ttft_censored", 0) <= counters["sent"]
            ended_early = counters["carried_over"] + counters["cancelled"] + counters["unfinished"]
            assert known.get("e2e_censored", 0) <= ended_early
            assert counters["tpot_parts"] <= known.get("tpot", 0)
            assert known.get("ttft_from_intended_censored", 0) >= counters["unsent"]
        awaited = [runs[-1].samples.first_wave_waiting for runs in self.runs if runs]
        assert all(count >= 0 for count in awaited)


TestAccounting = Accounting.TestCase
TestAccounting.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
