"""Chances of a request: the same for the same seed, stage and number, whoever sends it.

A draw needs no state, so it does not depend on the number of workers or on the draws before it.
"""

from __future__ import annotations

from hashlib import blake2b

_STEPS = 2.0**-64


def draw(seed: int, stage: int, index: int, purpose: str) -> float:
    """A number from 0 to below 1, even over requests and independent between purposes."""
    digest = blake2b(f"{seed}/{stage}/{index}/{purpose}".encode(), digest_size=8).digest()
    # 53 bits, so that the largest does not round up to 1.
    return (int.from_bytes(digest) >> 11 << 11) * _STEPS
