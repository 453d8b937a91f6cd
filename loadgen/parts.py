"""GPUs by their data sheets, a row each: what can be known of a box before anyone has looked at it."""

from __future__ import annotations

import difflib
import re
from typing import NamedTuple

from loadgen.errors import ProfileError


class Part(NamedTuple):
    """One GPU: peaks are dense, TFLOP/s and GB/s; None is unknown."""

    word: str  # as `--box` takes it
    name: str  # a pattern of the name in the vendor's library
    arch: str
    hbm_mib: int  # as its driver reports it
    board: int | None  # how many share a board; None for cards, of which a box has any number
    sixteen_bit: float
    fp8: float | None  # None if its matrix cores have no FP8
    hbm_gb_per_s: float
    clock_mhz: float | None = None  # the highest
    power_w: float | None = None
    fabric_gb_per_s: float | None = None  # of all its XGMI or NVLink links, both ways
    unsure: tuple[str, ...] = ()  # figures from memory or inferred: a judgement on one is information


_CLOCK = ("clock_mhz",)
_BOTH = (*_CLOCK, "fabric_gb_per_s")
PARTS = (
    # Data sheets of AMD Instinct MI210, MI300X and MI325X, and the MI350X and MI355X brochures: rows without sparsity.
    # Memory: as in tests/server/preflight/described, 16 MiB below 256 GiB for MI325X, and as MI355X's for MI350X. The
    # simulator's are like MI300X.
    Part("mi210", r"\bMI210\b", "gfx90a", 65_520, None, 181, None, 1638, 1700, 300, 300, _BOTH),
    Part("mi300x", r"\bMI300X\b|^Simulated GPU$", "gfx942", 196_592, 8, 1307.4, 2614.9, 5300, 2100, 750, 896, _BOTH),
    Part("mi325x", r"\bMI325X\b", "gfx942", 262_128, 8, 1307.4, 2614.9, 6000, 2100, 1000, 896, _BOTH),
    Part("mi350x", r"\bMI350X\b", "gfx950", 294_896, 8, 2307, 4614, 8000, 2200, 1000, 1075, _BOTH),
    Part("mi355x", r"\bMI355X\b", "gfx950", 294_896, 8, 2516.6, 5033.2, 8000, 2400, 1400, 1075, _BOTH),
    # Data sheets of NVIDIA A100, H100, H200 and HGX B200; from H100 on they print peaks with sparsity: half of these.
    # Memory: nvidia-smi, for A100, H100 and L40S as in modal-labs/modal-client pull request 2797.
    Part("a100-40gb", r"\bA100\b.*\b40GB\b", "sm_80", 40_960, None, 312, None, 1555),
    Part("a100-pcie", r"\bA100 80GB PCIe\b", "sm_80", 81_920, None, 312, None, 1935),
    Part("a100-sxm", r"\bA100-SXM4-80GB\b", "sm_80", 81_920, 8, 312, None, 2039),
    Part("h100-pcie", r"\bH100 PCIe\b", "sm_90", 81_559, None, 756.5, 1513, 2000),
    Part("h100-nvl", r"\bH100 NVL\b", "sm_90", 95_830, None, 835.5, 1670.5, 3900),
    Part("h200-nvl", r"\bH200 NVL\b", "sm_90", 143_771, None, 835.5, 1670.5, 4800),
    Part("h100-sxm", r"\bH100 80GB HBM3\b", "sm_90", 81_559, 8, 989.5, 1979, 3350, 1980, 700, 900, _BOTH),
    Part("h200-sxm", r"\bH200\b", "sm_90", 143_771, 8, 989.5, 1979, 4800, 1980, 700, 900, _CLOCK),
    Part("b200", r"\bB200\b", "sm_100", 183_359, 8, 2250, 4500, 8000, 1965, 1000, 1800, _BOTH),
    # Data sheets of NVIDIA L40 and L40S, which print both peaks: the first of each pair. Their memory is GDDR6.
    Part("l40", r"\bL40\b", "sm_89", 46_068, None, 181.05, 362, 864),
    Part("l40s", r"\bL40S\b", "sm_89", 46_068, None, 362.05, 733, 864, 2520, 350, None, _CLOCK),
)


def part_called(name: str) -> Part | None:
    """The part with this name in its vendor's library."""
    return next((part for part in PARTS if re.search(part.name, name)), None)


def named_box(text: str) -> tuple[Part, int | None]:
    """The part and the number in `mi300x` or `4xl40s`; without a number, a board of them, or None for cards."""
    match = re.fullmatch(r"(?:([1-9]\d{0,2})x)?(.+)", text.lower())
    count, word = match.groups() if match is not None else (None, "")
    part = next((part for part in PARTS if part.word == word), None)
    if part is None:
        words = [part.word for part in PARTS]
        same = [one for one in words if one.startswith(f"{word}-")] if word else []
        near = ", ".join(same or difflib.get_close_matches(word, words, n=3, cutoff=0.5) or words)
        raise ProfileError(f"--box {text}: no such GPU is known; expected [COUNTx]PART, such as {near}")
    return part, part.board if count is None else int(count)
