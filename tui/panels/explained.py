"""What each verdict means and what to do about it, in the words of the manual (`docs/telemetry.md`)."""

from __future__ import annotations

EXPLAINED: dict[str, tuple[str, str]] = {
    "client-limited": (
        "vramp itself was the limit: it read or sent late, or used up its cores",
        "do not trust this stage; free cores, load.workers, load.realtime",
    ),
    "truth": (
        "client and engine disagree about the same requests",
        "look for a proxy, or another client, between the two",
    ),
    "accounting": ("not every request that was sent is accounted for", "report it as a bug, with the journal"),
    "clock-moved": (
        "the clock of a host was moved while the stage ran: its streams' times are unsure by as much",
        "repeat the stage; look at what sets the clock there",
    ),
    "prefix-cache": (
        "prompts hit the prefix cache that should not have: prefill looks too fast",
        "another load.seed, a longer file of prompts",
    ),
    "spec-decode-random": (
        "speculative decoding on random prompts: acceptance says nothing about real text",
        "use a dataset (load.data)",
    ),
    "host-limited": ("the host's cores are busy, the GPUs wait", "more cores, or fewer other processes"),
    "output-drift": ("the output is wrong", "treat the box or the build as broken"),
    "output-broken": ("the output is wrong", "treat the box or the build as broken"),
    "output-degenerate": ("the output is wrong", "treat the box or the build as broken"),
    "throttled": ("the GPU is held back by heat, prochot or a brake", "cooling, power supply"),
    "straggler": ("its clock is below 90 % of its siblings'", "with tensor parallelism, every GPU waits for it"),
    "hotter-than-siblings": ("more than 10 C hotter than its siblings", "cooling"),
    "pcie-below-maximum": (
        "PCIe narrower or slower than it can be; an XGMI or NVLink link is down, or never came up while the "
        "siblings' did",
        "reseat, check the board",
    ),
    "link-down": (
        "PCIe narrower or slower than it can be; an XGMI or NVLink link is down, or never came up while the "
        "siblings' did",
        "reseat, check the board",
    ),
    "xid": (
        "Xid errors, memory errors, a bad row that waits for a reset or cannot be replaced; for a stage: new ones",
        "drain, reset or replace the GPU",
    ),
    "ecc-uncorrectable": (
        "Xid errors, memory errors, a bad row that waits for a reset or cannot be replaced; for a stage: new ones",
        "drain, reset or replace the GPU",
    ),
    "ecc-deferred": (
        "Xid errors, memory errors, a bad row that waits for a reset or cannot be replaced; for a stage: new ones",
        "drain, reset or replace the GPU",
    ),
    "row-remap": (
        "Xid errors, memory errors, a bad row that waits for a reset or cannot be replaced; for a stage: new ones",
        "drain, reset or replace the GPU",
    ),
    "hbm-used-before-start": ("more than 2 GiB were in use before the server started", "see who holds it: view 4"),
    "kv-limited": ("KV cache full, or preemptions", "shorter sequences, fewer streams, more memory for the cache"),
    "queueing": ("requests wait in the engine", "it is saturated at this load"),
    "capped": ("load.max_concurrency held back arrivals", "intended, or raise the cap"),
    "other-traffic": ("somebody else used the server in this stage", "repeat it without"),
    "bandwidth-bound": ("what the GPUs are busy with", "as expected near saturation"),
    "compute-bound": ("what the GPUs are busy with", "as expected near saturation"),
    "tail": (
        "the requests ran out while fewer streams than asked for were open",
        "more load.requests, or a duration",
    ),
    "power-capped": ("at its power limit; a cap other than the default", "normal at full load; check the cap"),
    "power-cap-changed": ("at its power limit; a cap other than the default", "normal at full load; check the cap"),
    "partitioned": ("the GPU is partitioned; bad pages or rows are out of use (bad if new in the stage)", ""),
    "memory-retired": ("the GPU is partitioned; bad pages or rows are out of use (bad if new in the stage)", ""),
    "output": ("what was checked of the output so far", ""),
}
"""By the verdict's id: its meaning, and what to do; empty where there is nothing to do."""
