"""The KV pool: blocks that sequences own, and full blocks that prompts with the same beginning share.

Invariants: a block is unused, or private to one sequence, or shared under a hash. A shared block that no sequence
refers to is still worth something, so it stays findable until its room is needed, the longest unused first. Whoever
shares a block shares everything before it: a hash covers the tokens of its block and the hash of the one before.
"""

from collections import OrderedDict
from collections.abc import Sequence as Sized
from itertools import pairwise


def block_hashes(ids: Sized[int], block_size: int, parent: int = 0) -> list[int]:
    """Chained hashes of the full blocks of `ids`, continuing after the block whose hash is `parent`."""
    hashes = []
    for start, stop in pairwise(range(0, len(ids) + 1, block_size)):
        parent = hash((parent, *ids[start:stop]))
        hashes.append(parent)
    return hashes


class BlockPool:
    """Counts blocks instead of storing anything; never hands out more than there are."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._unused = total
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # shared, referred to by nobody; oldest first

    @property
    def free(self) -> int:
        """Blocks that a sequence could be given now, those of idle prefixes included."""
        return self._unused + len(self._idle)

    @property
    def usage(self) -> float:
        """Share of the pool that sequences hold; idle prefixes do not count, as in vLLM."""
        return 1 - self.free / self.total

    def take(self, count: int) -> bool:
        """Hand out `count` private blocks, or none and False."""
        if count > self.free:
            return False
        self._unused -= count
        while self._unused < 0:
            self._idle.popitem(last=False)
            self._unused += 1
        return True

    def match(self, hashes: Sized[int]) -> int:
        """How many leading blocks are there to share."""
        for index, block in enumerate(hashes):
            if block not in self._references and block not in self._idle:
                return index
        return len(hashes)

    def share(self, hashes: Sized[int]) -> None:
        """Refer to blocks that `match` found."""
        for block in hashes:
            self._idle.pop(block, None)
            self._references[block] = self._references.get(block, 0) + 1

    def publish(self, block: int) -> bool:
        """Make one private block findable under its hash; False where another already is, and this stays private."""
        if block in self._references or block in self._idle:
            return False
        self._references[block] = 1
        return True

    def release(self, shared: Sized[int], private: int) -> None:
        """Take everything back from a sequence; the end of a prefix is forgotten before its beginning."""
        self._unused += private
        for block in reversed(shared):
            left = self._references[block] - 1
            if left:
                self._references[block] = left
            else:
                del self._references[block]
                self._idle[block] = None
