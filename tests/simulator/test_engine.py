"""The scheduler without sockets and clock: `run` is the clock."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.engine import BlockPool, Engine, Sequence, block_hashes
from loadgen.simulator.physics import Physics
from loadgen.simulator.tokens import answer_ids

MS = 1_000_000
SMALL = Physics(
    base_ms=1.0,
    per_seq_ms=0.5,
    per_prefill_token_ms=0.1,
    max_num_seqs=4,
    max_num_batched_tokens=8,
    max_model_len=64,
    kv_blocks=16,
    block_size=4,
)


def add(engine: Engine, prompt: int, limit: int, *, number: int = 0, first_id: int = 10, now: int = 0) -> Sequence:
    sequence = engine.sequence(number, list(range(first_id, first_id + prompt)), limit)
    engine.add(sequence, now)
    return sequence


def step(engine: Engine, now: int) -> tuple[int, list[Sequence]]:
    """One step; returns when it ended and who has a token."""
    end = engine.begin(now)
    assert end is not None
    emission = engine.finish(end)
    return end, emission.going + emission.ending


def run(engine: Engine, now: int = 0) -> list[tuple[int, list[Sequence]]]:
    """Steps until there is nothing left to do."""
    steps = []
    while (end := engine.begin(now)) is not None:
        emission = engine.finish(end)
        steps.append((end, emission.going + emission.ending))
        now = end
        assert len(steps) < 10_000
    return steps


def test_a_step_costs_what_is_in_it() -> None:
    engine = Engine(SMALL)
    add(engine, 5, 3)
    ends = [end for end, _ in run(engine)]
    # Base, one sequence, five prompt tokens; then base and one sequence, twice.
    assert ends == [2 * MS, 3_500_000, 5 * MS]


def test_a_step_begins_where_the_one_before_should_have_ended() -> None:
    engine = Engine(replace(SMALL, per_prefill_token_ms=0.0))
    add(engine, 1, 9)
    begun = [0, 1_700_000, 3_100_000, 9 * MS]  # the last comes when its whole step is over
    ends = []
    for now in begun:
        end = engine.begin(now)
        assert end is not None
        ends.append(end)
        engine.finish(end)
    assert ends == [1_500_000, 3 * MS, 4_500_000, 10_500_000]


def test_a_prompt_longer_than_the_budget_is_prefilled_in_chunks() -> None:
    engine = Engine(SMALL)
    sequence = add(engine, 20, 1)
    steps = run(engine)
    assert [who for _, who in steps] == [[], [], [sequence]]


def test_decoding_goes_on_while_a_prompt_is_prefilled() -> None:
    engine = Engine(SMALL)
    first = add(engine, 4, 10)
    now, _ = step(engine, 0)
    add(engine, 14, 1, number=1)
    now, who = step(engine, now)  # seven of the fourteen: the eighth token of the budget is the first one's
    assert who == [first]
    _, who = step(engine, now)
    assert len(who) == 2


def test_budget_below_the_decoding_streams() -> None:
    engine = Engine(SMALL)
    for number in range(3):
        add(engine, 1, 9, number=number)
    now, _ = step(engine, 0)
    prompt = add(engine, 20, 1, number=3)
    now, _ = step(engine, now)
    engine.physics = replace(SMALL, max_num_seqs=1, max_num_batched_tokens=1)
    step(engine, now)
    assert prompt.remaining == 15


def test_waits_for_a_place_in_order_of_arrival() -> None:
    engine = Engine(replace(SMALL, max_num_seqs=1))
    sequences = [add(engine, 4, 2, number=number, first_id=10 * number) for number in range(3)]
    order = [who[0] for _, who in run(engine)]
    assert order == [each for each in sequences for _ in range(2)]


def test_the_youngest_is_preempted_and_loses_no_token() -> None:
    engine = Engine(replace(SMALL, kv_blocks=4, max_model_len=16, prefix_caching=False))
    old, young = add(engine, 4, 12, number=1), add(engine, 4, 12, number=2)
    steps = run(engine)
    assert engine.preemptions == 1
    assert [sum(each in who for _, who in steps) for each in (old, young)] == [12, 12]
    assert max(end for end, who in steps if old in who) < max(end for end, who in steps if young in who)


def test_an_aborted_sequence_frees_its_blocks_at_once() -> None:
    engine = Engine(replace(SMALL, prefix_caching=False))
    running, waiting = add(engine, 4, 5), add(engine, 4, 5, number=1)
    engine.begin(0)
    assert engine.pool.usage > 0
    engine.abort(running)
    engine.abort(waiting)
    emission = engine.finish(MS)
    assert emission.going == emission.ending == []
    assert engine.pool.usage == 0
    assert engine.begin(MS) is None
    assert engine.aborted == 2


def test_aborting_twice_counts_once() -> None:
    engine = Engine(SMALL)
    sequence = add(engine, 4, 5)
    engine.abort(sequence)
    engine.abort(sequence)
    assert engine.aborted == 1


def test_no_first_token_before_its_time() -> None:
    engine = Engine(replace(SMALL, first_token_ms=20))
    add(engine, 4, 2, now=1 * MS)
    ends = [end for end, who in run(engine, 1 * MS) if who]
    assert ends[0] >= 21 * MS
    assert ends[0] - 21 * MS < 2 * MS


def test_a_sequence_held_back_can_be_aborted() -> None:
    engine = Engine(replace(SMALL, first_token_ms=20))
    sequence = add(engine, 4, 2)
    step(engine, 0)
    engine.abort(sequence)
    assert engine.begin(50 * MS) is None


def test_on_a_grid_every_step_ends_on_it() -> None:
    engine = Engine(replace(SMALL, step_ms=10, first_token_ms=50))
    sequence = add(engine, 4, 3, now=3 * MS)
    ends = [end for end, who in run(engine, 3 * MS) if sequence in who]
    assert ends == [60 * MS, 70 * MS, 80 * MS]
    assert engine.late_steps == 0


def test_a_late_step_on_the_grid_is_counted_and_makes_no_drift() -> None:
    engine = Engine(replace(SMALL, step_ms=10))
    add(engine, 4, 9)
    step(engine, 1 * MS)
    end, _ = step(engine, 38 * MS)  # 20 and 30 went by
    assert end == 40 * MS
    assert engine.late_steps == 2


def test_a_timer_that_fires_early_makes_no_step_twice() -> None:
    engine = Engine(replace(SMALL, step_ms=10))
    add(engine, 4, 9)
    engine.begin(1 * MS)
    engine.finish(9 * MS)
    assert engine.begin(9 * MS) == 20 * MS


def test_a_late_step_without_a_grid_is_counted() -> None:
    engine = Engine(SMALL)
    add(engine, 4, 9)
    end = engine.begin(0)
    assert end is not None
    engine.finish(end + 2 * MS)
    assert engine.late_steps == 1


def test_the_same_prompt_again_hits_the_prefix_cache() -> None:
    engine = Engine(SMALL)
    add(engine, 10, 1)
    run(engine)
    add(engine, 10, 1, number=1)
    run(engine)
    assert engine.prefix_queries == 20
    assert engine.prefix_hits == 8


def test_a_prompt_that_is_being_computed_is_shared() -> None:
    engine = Engine(SMALL)
    add(engine, 20, 1)
    add(engine, 20, 1, number=1)
    run(engine)
    # The second begins in the step that computes the rest of the first: all full blocks but the last, as of any prompt.
    assert engine.prefix_hits == 16


def test_a_whole_prompt_in_the_cache_still_computes_its_last_token() -> None:
    engine = Engine(SMALL)
    add(engine, 8, 1)
    run(engine)
    sequence = add(engine, 8, 1, number=1)
    assert [sequence] in [who for _, who in run(engine)]
    assert engine.prefix_hits == 4


def test_the_next_turn_finds_the_answer_in_the_cache() -> None:
    engine = Engine(SMALL)
    prompt = list(range(10, 16))
    engine.add(engine.sequence(1, prompt, 8, start=5), 0)
    run(engine)
    follow_up = engine.sequence(2, [*prompt, *answer_ids(5, 8), 99, 98], 1)
    engine.add(follow_up, 0)
    run(engine)
    assert engine.prefix_hits == 12  # 6 + 7 tokens were computed: three full blocks of four


def test_without_prefix_caching_nothing_is_asked() -> None:
    engine = Engine(replace(SMALL, prefix_caching=False))
    add(engine, 10, 1)
    run(engine)
    assert engine.prefix_queries == 0


@pytest.mark.parametrize(("seed", "same"), [(1, True), (2, False)])
def test_jitter_depends_on_the_seed_only(seed: int, same: bool) -> None:
    def ends(seed: int) -> list[int]:
        engine = Engine(replace(SMALL, jitter=0.1), seed=seed)
        add(engine, 4, 20)
        return [end for end, _ in run(engine)]

    assert (ends(1) == ends(seed)) is same


requests = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(0, 3), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(
    requests=requests,
    blocks=st.integers(16, 40),
    seqs=st.integers(1, 6),
    budget=st.integers(6, 40),
    caching=st.booleans(),
    hold=st.sampled_from([0.0, 7.0]),
)
def test_whatever_comes_is_served_within_the_limits(
    requests: list[tuple[int, int, int, bool]], blocks: int, seqs: int, budget: int, caching: bool, hold: float
) -> None:
    engine = Engine(
        replace(
            SMALL,
            kv_blocks=blocks,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            prefix_caching=caching,
            first_token_ms=hold,
        )
    )
    expected: dict[Sequence, int] = {}
    served: dict[Sequence, int] = {}
    now, pending = 0, list(enumerate(requests))
    doomed: list[Sequence] = []
    for turn in range(5_000):
        while pending and (pending[0][1][2] <= turn or not engine.running):
            number, (prompt, limit, _, abort) = pending.pop(0)
            sequence = add(engine, prompt, limit, number=number, first_id=10 * (number % 3), now=now)
            if abort:
                doomed.append(sequence)
            else:
                expected[sequence] = limit
        end = engine.begin(now)
        if end is None:
            break
        assert len(engine.running) <= seqs
        assert 0 <= engine.pool.free <= blocks
        held = sum(sequence.private for sequence in engine.running)
        shared = {block for sequence in engine.running for block in sequence.shared}
        assert held + len(shared) + engine.pool.free == blocks
        if turn == 6:
            for sequence in doomed:
                engine.abort(sequence)
        emission = engine.finish(end)
        assert emission.computed <= budget
        assert end > now
        for sequence in emission.going + emission.ending:
            served[sequence] = served.get(sequence, 0) + 1
            assert sequence.generated == served[sequence]
        now = end
    assert {sequence: served.get(sequence) for sequence in expected} == expected
    assert engine.pool.usage == 0
    assert engine.begin(now) is None


@given(arrivals=st.lists(st.integers(1, 8), min_size=2, max_size=8))
@settings(max_examples=50, deadline=None)
def test_first_tokens_come_in_order_of_arrival(arrivals: list[int]) -> None:
    engine = Engine(replace(SMALL, max_num_seqs=2, prefix_caching=False))
    sequences = [add(engine, prompt, 3, number=number) for number, prompt in enumerate(arrivals)]
    run(engine)
    firsts = [sequence.first_ns for sequence in sequences]
    assert firsts == sorted(firsts)


def test_hashes_cover_full_blocks_only() -> None:
    assert len(block_hashes(range(35), 16)) == 2
    assert block_hashes(range(15), 16) == []


def test_a_hash_covers_everything_before_its_block() -> None:
    one = block_hashes([1, 2, 3, 4], 2)
    other = block_hashes([9, 2, 3, 4], 2)
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_hashes_continue_after_a_parent() -> None:
    whole = block_hashes(range(64), 16)
    assert whole[:2] + block_hashes(range(32, 64), 16, whole[1]) == whole


def test_blocks_are_taken_all_or_none() -> None:
    pool = BlockPool(4)
    assert pool.take(3)
    assert not pool.take(2)
    assert pool.free == 1
    assert pool.usage == 0.75


def test_a_released_prefix_is_found_and_does_not_count_as_used() -> None:
    pool = BlockPool(4)
    pool.take(2)
    assert pool.publish(11)
    assert pool.publish(12)
    pool.release([11, 12], 0)
    assert pool.usage == 0
    assert pool.match([11, 12, 13]) == 2


def test_a_block_is_published_once() -> None:
    pool = BlockPool(4)
    pool.take(2)
    assert pool.publish(11)
    assert not pool.publish(11)


def test_the_end_of_the_oldest_prefix_goes_first() -> None:
    pool = BlockPool(4)
    for block in (1, 2, 3, 4):
        pool.take(1)
        pool.publish(block)
    pool.release([1, 2], 0)
    pool.release([3, 4], 0)
    assert pool.take(1)
    assert pool.match([1, 2]) == 1
    assert pool.match([3, 4]) == 2


def test_a_shared_block_stays_until_its_last_owner_goes() -> None:
    pool = BlockPool(2)
    pool.take(1)
    pool.publish(1)
    pool.share([1])
    pool.release([1], 0)
    assert pool.take(1)
    assert not pool.take(1)
    pool.release([1], 1)
    assert pool.free == 2


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=40))
def test_never_hands_out_more_than_there_is(steps: list[tuple[int, bool]]) -> None:
    pool, held = BlockPool(16), 0
    for count, give_back in steps:
        if give_back:
            pool.release([], min(count, held))
            held -= min(count, held)
        elif pool.take(count):
            held += count
        assert held + pool.free == 16
