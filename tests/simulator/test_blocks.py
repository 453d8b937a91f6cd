from hypothesis import given
from hypothesis import strategies as st

from loadgen.simulator.blocks import BlockPool, block_hashes


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


def test_takes_all_or_nothing() -> None:
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
