"""Continuous batching: what each sequence computes in each step, and which sequences get a token at its end.

Pure: no clock, no socket. The owner calls `begin(now)`, waits until the time it returns, and calls `finish(now)`.

Invariants, all tested as properties:
- every running sequence that decodes computes exactly one token per step; the rest of the token budget goes to prompts,
  first those already running, then the waiting ones in order of arrival;
- blocks are taken before tokens are computed, never more than the pool has; if a decoding sequence needs one and there
  is none, the youngest running sequence gives back all of its own and waits again, at the head of the queue;
- a preempted sequence recomputes prompt and answer, and no token of the answer is sent twice;
- a block of the KV pool is unused, private to one sequence, or shared under a hash. A shared block without users stays
  findable until its room is needed, least recently used first. A sequence that shares a block shares everything before
  it: a hash covers the tokens of its block and the hash of the previous one.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence as Sized
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise
from random import Random
from typing import Any, Literal

from loadgen.simulator.physics import Physics
from loadgen.simulator.tokens import answer_ids


def block_hashes(ids: Sized[int], block_size: int, parent: int = 0) -> list[int]:
    """Chained hashes of the full blocks of `ids`, continuing after the block whose hash is `parent`."""
    hashes = []
    for start, stop in pairwise(range(0, len(ids) + 1, block_size)):
        parent = hash((parent, *ids[start:stop]))
        hashes.append(parent)
    return hashes


class BlockPool:
    """Counts blocks without storing data; never hands out more than there are."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._unused = total
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # shared blocks without users, oldest first

    @property
    def free(self) -> int:
        """Blocks available to a sequence now, including those of idle prefixes."""
        return self._unused + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the pool that sequences hold; idle prefixes do not count, as in vLLM."""
        return 1 - self.free / self.total

    def take(self, count: int) -> bool:
        """Hand out `count` private blocks and return True, or none and False."""
        if count > self.free:
            return False
        self._unused -= count
        while self._unused < 0:
            self._idle.popitem(last=False)
            self._unused += 1
        return True

    def match(self, hashes: Sized[int]) -> int:
        """The number of leading blocks that can be shared."""
        for index, block in enumerate(hashes):
            if block not in self._references and block not in self._idle:
                return index
        return len(hashes)

    def share(self, hashes: Sized[int]) -> None:
        for block in hashes:
            self._idle.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1

    def publish(self, block: int) -> bool:
        """Make a private block findable under its hash; False if another one already is, and this one stays private."""
        if block in self._references or block in self._idle:
            return False
        self._references[block] = 1
        return True

    def release(self, shared: Sized[int], private: int) -> None:
        """Take back all blocks of a sequence; the end of a prefix is forgotten before its beginning."""
        self._unused += private
        for block in reversed(shared):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
            else:
                del self._references[block]
                self._idle[block] = None


State = Literal["new", "waiting", "prefill", "held", "decode", "done"]
LATE_NS = 1_000_000


@dataclass(slots=True, eq=False)
class Sequence:
    """One request as the scheduler sees it: lengths, blocks and stamps; its `stream` knows what to send."""

    number: int
    prompt_len: int
    limit: int  # tokens after which it ends
    hashes: list[int] = field(default_factory=list)  # of the prompt's full blocks; empty without prefix caching
    tail: list[int] = field(default_factory=list)  # the prompt's tokens after its last full block
    start: int = 0  # where its answer starts, see `tokens.ANSWER`
    reason: Literal["length", "stop"] = "length"  # why it ends there
    scored: bool = False  # prompt log probabilities are requested, so the whole prompt is computed, whatever is cached
    stream: Any = None
    state: State = "new"
    generated: int = 0
    remaining: int = 0  # tokens to compute before its next output token; zero while it decodes
    cached: int = 0  # prompt tokens that hit the prefix cache
    room: int = 0  # generated tokens that fit its blocks
    shared: list[int] = field(default_factory=list)
    private: int = 0
    arrived_ns: int = 0
    due_ns: int = 0  # the earliest time of its first token
    scheduled_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0  # time of its latest token, updated only at a preemption and at the end


@dataclass(frozen=True, slots=True)
class Emission:
    """The output of a step: one more token for each of `going`, the last one for each of `ending`."""

    going: list[Sequence]
    ending: list[Sequence]
    joined: list[Sequence]  # those without a token in the step before: new or preempted ones
    computed: int  # tokens computed, including prompts


class Engine:
    def __init__(self, physics: Physics, *, seed: int = 0) -> None:
        self.physics = physics
        self.pool = BlockPool(physics.kv_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[Sequence, None] = {}  # in order of admission, youngest last
        self.preemptions = self.prefix_queries = self.prefix_hits = 0
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = self.computed_tokens = 0
        self.steps = self.late_steps = self.aborted = 0
        self.hang = ""  # the kind of hang that it is in
        self._unheard: list[Sequence] = []  # aborted while it hung
        self._random = Random(seed)
        self._decoding: dict[Sequence, None] = {}
        self._prefilling: dict[Sequence, None] = {}
        self._held: list[tuple[int, int, Sequence]] = []
        self._short: list[Sequence] = []  # decoding, but without a block for their next token
        self._joining: list[Sequence] = []
        self._computing = 0
        self._end_ns = 0
        self._finished_ns = 0

    def sequence(self, number: int, ids: list[int], limit: int, *, start: int = 0) -> Sequence:
        """A sequence for a prompt, with hashes if there is a prefix cache."""
        if not self.physics.prefix_caching:
            return Sequence(number, len(ids), limit, start=start)
        size = self.physics.block_size
        hashes = block_hashes(ids, size)
        return Sequence(number, len(ids), limit, hashes, ids[len(hashes) * size :], start)

    def add(self, sequence: Sequence, now_ns: int) -> None:
        """Queue a sequence; `now_ns` is when its request was received."""
        sequence.state = "waiting"
        sequence.arrived_ns = now_ns
        sequence.due_ns = now_ns + int(self.physics.first_token_ms * 1e6)
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Remove a sequence at once, whatever its state; harmless when it is done."""
        if sequence.state in ("new", "done"):
            return
        if self.hang and self.hang != "scheduler":
            self._unheard.append(sequence)
            return
        if sequence.state == "waiting":
            self.waiting.remove(sequence)
        else:
            self._leave(sequence)
        sequence.state = "done"
        self.aborted += 1

    def go_on(self) -> None:
        """End a hang."""
        self.hang, unheard, self._unheard = "", self._unheard, []
        for sequence in unheard:
            self.abort(sequence)

    def begin(self, now_ns: int) -> int | None:
        """Plan a step that starts now and return when it ends; None when there is nothing to do."""
        if not self.running and not self.waiting:
            self._end_ns = 0
            return None
        now_ns = max(now_ns, self._end_ns)  # a timer that fires early must not make a step twice
        preempted = self._grow()
        # The budget may be lowered while sequences decode, even below their number.
        budget = max(0, self.physics.max_num_batched_tokens - len(self._decoding))
        prefill = 0
        for sequence in self._prefilling:  # prompts that did not fit the steps before
            prefill += self._compute(sequence, budget - prefill)
        if not preempted:
            prefill += self._admit(budget - prefill, now_ns)
        self._computing = len(self._decoding) + prefill
        end_ns = self._step_end(now_ns, prefill)
        while self._held and self._held[0][0] <= end_ns:
            self._joining.append(heappop(self._held)[2])
        self._end_ns = end_ns
        return end_ns

    def finish(self, now_ns: int) -> Emission:
        """End the step that `begin` planned; sequences that ended have left the engine."""
        self.steps += 1
        if not self.physics.step_ms and now_ns - self._end_ns > LATE_NS:
            self.late_steps += 1
        self._finished_ns = now_ns
        joined = self._join(now_ns)
        tokens, ending, short = list(self._decoding), [], []
        for sequence in tokens:
            generated = sequence.generated = sequence.generated + 1
            if generated >= sequence.limit:
                ending.append(sequence)
            elif generated > sequence.room:
                short.append(sequence)
        self._short = short
        self.generation_tokens += len(tokens)
        self.computed_tokens += self._computing
        for sequence in ending:
            self._keep_answer(sequence)
            self._leave(sequence)
            sequence.state = "done"
            sequence.last_ns = now_ns
        if ending:
            tokens = [sequence for sequence in tokens if sequence.state != "done"]
        return Emission(tokens, ending, joined, self._computing)

    def _step_end(self, now_ns: int, prefill: int) -> int:
        """When the step that begins now ends: at the next point of the grid, or after the cost of its work."""
        if grid := int(self.physics.step_ms * 1e6):
            end_ns = (now_ns // grid + 1) * grid
            if self._end_ns:
                self.late_steps += (end_ns - self._end_ns) // grid - 1
            return end_ns
        cost_ns = self.physics.step_ns(len(self.running), prefill)
        if self.physics.jitter:
            cost_ns = int(cost_ns * min(3.0, max(0.3, self._random.gauss(1.0, self.physics.jitter))))
        # The step began when the previous one ended: time spent on writing tokens is not the engine's.
        # A delay of a whole step or more is not made up for.
        begun_ns = self._end_ns if self._end_ns and now_ns < self._end_ns + cost_ns else now_ns
        return begun_ns + cost_ns

    def _grow(self) -> bool:
        """Give a block to every decoding sequence without room; True if that required a preemption."""
        preempted = False
        for sequence in self._short:
            while sequence.state == "decode" and not self.pool.take(1):
                youngest = next(reversed(self.running))
                self._leave(youngest)
                youngest.state = "waiting"
                youngest.last_ns = self._finished_ns
                self.waiting.appendleft(youngest)
                self.preemptions += 1
                preempted = True
            if sequence.state == "decode":
                sequence.private += 1
                sequence.room += self.physics.block_size
        return preempted

    def _admit(self, budget: int, now_ns: int) -> int:
        """Start waiting sequences in order until one does not fit."""
        used = 0
        while (
            self.waiting
            and self.hang != "scheduler"
            and used < budget
            and len(self.running) < self.physics.max_num_seqs
        ):
            sequence = self.waiting[0]
            if not self._place(sequence):
                break
            self.waiting.popleft()
            sequence.scheduled_ns = sequence.scheduled_ns or now_ns
            sequence.state = "prefill"
            self.running[sequence] = self._prefilling[sequence] = None
            used += self._compute(sequence, budget - used)
        return used

    def _place(self, sequence: Sequence) -> bool:
        """Take the blocks of a prompt (and of the answer so far), shared ones where they match."""
        size, known = self.physics.block_size, sequence.prompt_len + sequence.generated
        # At least one token is always computed: the next token comes from its logits.
        cached = 0 if sequence.scored else min(self.pool.match(sequence.hashes), (known - 1) // size)
        sequence.shared = sequence.hashes[:cached]
        self.pool.share(sequence.shared)
        blocks = -(-known // size)
        if not self.pool.take(blocks - cached):
            self.pool.release(sequence.shared, 0)
            sequence.shared = []
            return False
        sequence.private = blocks - cached
        sequence.room = blocks * size - sequence.prompt_len
        sequence.remaining = known - cached * size
        if not sequence.scheduled_ns and self.physics.prefix_caching and not sequence.scored:
            self.prefix_queries += sequence.prompt_len
            self.prefix_hits += cached * size
            sequence.cached = cached * size
        return True

    def _compute(self, sequence: Sequence, budget: int) -> int:
        """Plan tokens of a prompt; as in vLLM, others can share its full blocks from the step that computes them."""
        tokens = min(sequence.remaining, budget)
        sequence.remaining -= tokens
        computed = sequence.prompt_len + sequence.generated - sequence.remaining
        self._publish(sequence, sequence.hashes[: computed // self.physics.block_size])
        return tokens

    def _join(self, now_ns: int) -> list[Sequence]:
        """The sequences that get their first token now, or the first after a preemption."""
        for sequence in [each for each in self._prefilling if not each.remaining]:
            del self._prefilling[sequence]
            if sequence.due_ns > self._end_ns:
                sequence.state = "held"
                heappush(self._held, (sequence.due_ns, sequence.number, sequence))
            else:
                self._joining.append(sequence)
        joined = [each for each in self._joining if each.state in ("prefill", "held")]
        self._joining = []
        for sequence in joined:
            sequence.state = "decode"
            self._decoding[sequence] = None
            if not sequence.first_ns:
                sequence.first_ns = now_ns
                self.prompt_tokens += sequence.prompt_len
                self.cached_tokens += sequence.cached
        return joined

    def _publish(self, sequence: Sequence, hashes: list[int]) -> None:
        for block in hashes[len(sequence.shared) :]:
            # A block is shared only with its whole prefix, so the first one that another has published ends the loop.
            if not self.pool.publish(block):
                break
            sequence.shared.append(block)
            sequence.private -= 1

    def _keep_answer(self, sequence: Sequence) -> None:
        """Publish the blocks of the answer, for the next turn of the same conversation."""
        if not self.physics.prefix_caching or len(sequence.shared) != len(sequence.hashes):
            return
        # The last token was sent but never computed.
        computed = sequence.tail + answer_ids(sequence.start, sequence.generated - 1)
        parent = sequence.hashes[-1] if sequence.hashes else 0
        self._publish(sequence, sequence.hashes + block_hashes(computed, self.physics.block_size, parent))

    def _leave(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self._decoding.pop(sequence, None)
        self._prefilling.pop(sequence, None)
        if sequence.state == "held":
            self._held = [entry for entry in self._held if entry[2] is not sequence]
            heapify(self._held)
        self.pool.release(sequence.shared, sequence.private)
        sequence.shared, sequence.private = [], 0
