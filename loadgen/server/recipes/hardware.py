"""The nodes that recipes are written for: facts of `taxonomy.yaml` in vllm-project/recipes (Apache-2.0, 8959cf64)."""

from __future__ import annotations

from typing import NamedTuple

from loadgen.errors import ProfileError
from loadgen.parts import PARTS
from loadgen.vendors import Platform, platform_of


class Node(NamedTuple):
    """One node: recipes look up their differences by its word, its generation and its brand."""

    word: str
    brand: str
    generation: str
    gpus: int
    memory_gb: int  # of all of them

    @property
    def platform(self) -> Platform:
        return {"AMD": "rocm", "NVIDIA": "cuda"}.get(self.brand, "cpu")  # type: ignore[return-value]


NODES = (
    Node("h100", "NVIDIA", "hopper", 8, 640),
    Node("h200", "NVIDIA", "hopper", 8, 1128),
    Node("b200", "NVIDIA", "blackwell", 8, 1440),
    Node("gb200", "NVIDIA", "blackwell", 4, 768),
    Node("b300", "NVIDIA", "blackwell", 8, 2144),
    Node("gb300", "NVIDIA", "blackwell", 4, 1152),
    Node("dgx_station_gb300", "NVIDIA", "blackwell", 1, 252),
    Node("dgx_spark_gb10", "NVIDIA", "blackwell", 1, 128),
    Node("rtx_pro_6000", "NVIDIA", "blackwell", 1, 96),
    Node("rtx_pro_6000_2x", "NVIDIA", "blackwell", 2, 192),
    Node("rtx_pro_6000_8x", "NVIDIA", "blackwell", 8, 768),
    Node("rtx_pro_5000", "NVIDIA", "blackwell", 1, 72),
    Node("rtx_pro_5000_4x", "NVIDIA", "blackwell", 4, 288),
    Node("rtx_5090", "NVIDIA", "blackwell", 1, 32),
    Node("rtx_5090_2x", "NVIDIA", "blackwell", 2, 64),
    Node("rtx_4090_2x", "NVIDIA", "ada", 2, 48),
    Node("mi300x", "AMD", "amd", 8, 1536),
    Node("mi325x", "AMD", "amd", 8, 2048),
    Node("mi355x", "AMD", "amd", 8, 2304),
    Node("xeon5", "Intel", "cpu", 4, 1024),
    Node("xeon6", "Intel", "cpu", 4, 1024),
)
_GENERATIONS = {"sm_80": "ampere", "sm_89": "ada", "sm_90": "hopper", "sm_100": "blackwell"}


def node_called(word: str) -> Node:
    """The node of a word of the recipes, or of a GPU that `vramp check --box` knows; raises `ProfileError`."""
    word = word.lower()
    names = (word, word.partition("-")[0])
    node = next((node for name in names for node in NODES if node.word == name), None)
    part = next((part for part in PARTS if part.word == word), None)
    if node is None and part is not None:
        is_amd, gpus = platform_of(part.arch) == "rocm", part.board or 1
        generation = "amd" if is_amd else _GENERATIONS.get(part.arch, part.arch)
        node = Node(part.word, "AMD" if is_amd else "NVIDIA", generation, gpus, part.hbm_mib * gpus >> 10)
    if node is None:
        known = dict.fromkeys([*(node.word for node in NODES), *(part.word for part in PARTS)])
        raise ProfileError(f"--hardware {word}: no such hardware is known; there is {', '.join(known)}")
    return node


def node_in(text: str) -> Node | None:
    """The node that a name such as `cluster:b200-dgxc` begins with."""
    word = text.rpartition(":")[2].lower().partition("-")[0]
    return next((node for node in NODES if node.word == word), None)
