"""A recorded session as a tree of requests: turns, sub-agents, joins and background children are all `after` edges.

A chain is one agent's requests in order; chain 0 is the root, every other one a sub-agent of its parent chain. Three
rules make the edges of a recording:
- a request follows the one before it in its chain;
- the first request of a sub-agent follows the request of its parent that started last before it;
- a request also waits for the sub-agents whose last request had started before it did. A sub-agent that no later
  request of its parent waited for runs in the background.

Invariant: no tokens and no block ids are kept. A request repeats the first `shared` blocks of the context of request
`base`, and the rest of its prompt is new: blocks have the same beginning exactly where the recording's had, and a tree
is a few numbers a request, however long its contexts are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

COMMON = -1  # in place of a request: what all sessions have at their beginning


class SessionRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request of a session; other requests are named by their place in the tree."""

    isl: int
    osl: int
    at_s: float = 0.0  # when it started in the recording, counted from the session's start
    gap_s: float = 0.0  # from the end of the last of `after` to its start
    after: tuple[int, ...] = ()  # the requests that it waits for
    chain: int = 0
    base: int | None = None  # the request whose context it continues; None: it begins a new one
    shared: int = 0  # blocks of that context, from its beginning, that it repeats


class SessionTree(msgspec.Struct, frozen=True):
    """The requests of a session in the order in which they started."""

    name: str
    block_size: int  # tokens
    requests: tuple[SessionRequest, ...]
    parents: tuple[int | None, ...] = (None,)  # the parent of each chain; None: the root

    @property
    def duration_s(self) -> float:
        """From the start of the first request to that of the last one; how long the last answer took is not kept."""
        return self.requests[-1].at_s

    @property
    def longest(self) -> int:
        """The most tokens of a prompt and its answer together."""
        return max(request.isl + request.osl for request in self.requests)

    def context(self, index: int, common_prefix: int = 0) -> list[tuple[int, int]]:
        """The prompt of a request as (request, tokens): so many tokens from the beginning of what is new in each.

        Up to `common_prefix` tokens at the beginning of the session are `COMMON`, and not the first request's.
        """
        pieces, tokens = [], self.requests[index].isl
        here: int | None = index
        while here is not None:
            request = self.requests[here]
            repeated = min(tokens, request.shared * self.block_size)
            if tokens > repeated:
                pieces.append((here, tokens - repeated))
            here, tokens = request.base, repeated
        pieces.reverse()
        if common_prefix and pieces[0][0] == 0:
            tokens = pieces[0][1]
            common = min(tokens, common_prefix)
            pieces[:1] = [(COMMON, common), (0, tokens - common)][: 1 + (tokens > common)]
        return pieces


class RecordedRequest(NamedTuple):
    """One request as a trace has it."""

    start_s: float
    end_s: float
    isl: int
    osl: int
    chain: int = 0
    blocks: Sequence[int] | None = None  # ids of the prompt's blocks; None: it repeats the one before in its chain
    repeats: int | None = None  # without `blocks`: so many tokens of that one, or of the root's; None: all that fit


def session_tree(
    name: str, block_size: int, recorded: Iterable[RecordedRequest], parents: Sequence[int | None] = (None,)
) -> SessionTree:
    """The tree of a recording; raises ValueError where a sub-agent starts before any request of its parent."""
    ordered = sorted(recorded, key=lambda request: request.start_s)
    last_of = {request.chain: index for index, request in enumerate(ordered)}
    latest: dict[int, int] = {}  # the request of each chain that started last so far
    ended: defaultdict[int, list[int]] = defaultdict(list)  # by parent: the last requests that none waits for yet
    prefixes = _Prefixes(block_size)
    requests = []
    for index, request in enumerate(ordered):
        parent = parents[request.chain]
        # The request before it in its chain, or the one that started the chain.
        before = latest.get(request.chain, None if parent is None else latest.get(parent))
        if before is None and parent is not None:
            raise ValueError(f"a sub-agent starts at {request.start_s:g} s, before any request of its parent")
        after = (*([] if before is None else [before]), *ended.pop(request.chain, ()))
        base, shared = prefixes.add(index, request)
        ended_s = max((ordered[earlier].end_s for earlier in after), default=request.start_s)
        requests.append(
            SessionRequest(
                isl=request.isl,
                osl=request.osl,
                at_s=request.start_s - ordered[0].start_s,
                gap_s=max(0.0, request.start_s - ended_s),
                after=after,
                chain=request.chain,
                base=base,
                shared=shared,
            )
        )
        latest[request.chain] = index
        if parent is not None and index == last_of[request.chain]:
            ended[parent].append(index)
    return SessionTree(name, block_size, tuple(requests), tuple(parents))


class _Prefixes:
    """All prompts of a session so far, to find the longest beginning that a new one shares with any of them."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._nodes: dict[tuple[int, int], int] = {}  # (prefix, next block) -> the prefix with that block
        self._added_by = [-1]  # the request with which each prefix first came
        self._paths: dict[int, tuple[Sequence[int], list[int]]] = {}  # of each chain's last request: blocks, prefixes
        self._sizes: dict[int, tuple[int | None, int]] = {}  # of each chain's last: its number, tokens

    def add(self, index: int, request: RecordedRequest) -> tuple[int | None, int]:
        """The earlier request that a prompt shares its longest beginning with, and the number of blocks shared."""
        if request.blocks is None:
            root = (None, 0) if request.repeats is None else self._sizes.get(0, (None, 0))
            before, isl = self._sizes.get(request.chain, root)
            self._sizes[request.chain] = index, request.isl
            repeated = isl if request.repeats is None else request.repeats
            return before, min(repeated, isl, request.isl) // self._block_size
        blocks = request.blocks[: -(-request.isl // self._block_size)]
        earlier, path = self._paths.get(request.chain, ((), []))
        # The comparison with the last request is only a shortcut: most prompts extend it, by little.
        path = path[: common_start(earlier, blocks)]
        for block in islice(blocks, len(path), None):
            node = self._nodes.get((path[-1] if path else 0, block))
            if node is None:
                break
            path.append(node)
        shared, base = len(path), self._added_by[path[-1]] if path else None
        node, first = path[-1] if path else 0, len(self._added_by)
        for number, block in enumerate(islice(blocks, shared, None), first):
            self._nodes[node, block] = node = number
        path += range(first, first + len(blocks) - shared)
        self._added_by += [index] * (len(blocks) - shared)
        self._paths[request.chain] = blocks, path
        return base, shared


def common_start(first: Sequence[object], second: Sequence[object]) -> int:
    """How many leading elements are equal."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
