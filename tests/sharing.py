"""A trace whose prompts share blocks, and what a prefix cache finds of it: for the simulator and the real engine."""

import json
import random


class SharingTrace:
    """Prompts of a few blocks, of which there are only three, so that most begin as others do."""

    def __init__(self, rows: int) -> None:
        draw = random.Random(1)
        self._ids = [[draw.randrange(3) for _ in range(draw.randrange(1, 6))] for _ in range(rows)]
        self._lengths = [512 * len(ids) - draw.choice([0, 0, 1, 300]) for ids in self._ids]

    @property
    def text(self) -> str:
        """As Mooncake's are published."""
        rows = [
            {"timestamp": number, "input_length": isl, "output_length": 2, "hash_ids": ids}
            for number, (ids, isl) in enumerate(zip(self._ids, self._lengths, strict=True))
        ]
        return "".join(json.dumps(row) + "\n" for row in rows)

    def hit_rate(self, block: int) -> float:
        """The hit rate of an endless cache with blocks of this size, each prompt after the one before."""
        known: set[tuple[int, ...]] = set()
        hits = 0
        for ids, isl in zip(self._ids, self._lengths, strict=True):
            # A block of the cache is known by where it lies and all ids up to it.
            blocks = [(start, *ids[: start // 512 + 1]) for start in range(0, isl - block + 1, block)]
            # The last token of a prompt is always computed.
            hits += block * sum(one in known for one in blocks if one[0] + block <= isl - 1)
            known |= set(blocks)
        return hits / sum(self._lengths)
