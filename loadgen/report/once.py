"""One snapshot for scripts and for a glance: `vramp monitor --once`, as text and as JSON, schema `vramp.monitor/1`."""

from __future__ import annotations

import msgspec

from loadgen.format import UNKNOWN, count, fixed, memory, percent, significant
from loadgen.report.tabular import json_text
from loadgen.schema.snapshot import Snapshot

SCHEMA = "vramp.monitor/1"


def once_json(snapshot: Snapshot) -> str:
    """Engine, GPUs, host and verdicts; of each GPU what is fixed and what was measured, in one object."""
    server = snapshot.server
    was_measured = snapshot.engine is not None or any(gpu.sample and gpu.sample.has_figures for gpu in snapshot.gpus)
    gpus = []
    for gpu in snapshot.gpus:
        sample = {} if gpu.sample is None else msgspec.to_builtins(gpu.sample)
        gpus.append({**msgspec.to_builtins(gpu.static), **sample, "flags": gpu.flags})
    is_known = was_measured or not snapshot.healthy
    return json_text(
        {
            "schema": SCHEMA,
            "unix_s": snapshot.unix_s,
            "healthy": snapshot.healthy if is_known else None,  # None: the headline says why
            "headline": snapshot.headline,
            "verdicts": snapshot.verdicts,
            "server": {"url": server.url, "state": server.state, "model": server.model} if server.exists else None,
            "engine": snapshot.engine,
            "telemetry": snapshot.telemetry,
            "gpus": gpus,
            "host": snapshot.host,
        }
    )


def once_text(snapshot: Snapshot) -> str:
    """The headline, a line for the engine, the host and each GPU, or why there is none, and the verdicts."""
    lines = [snapshot.headline]
    engine = snapshot.engine
    if engine is not None:
        lines.append(
            f"engine: {count(engine.running)} running, {count(engine.waiting)} waiting, KV {percent(engine.kv_usage)}, "
            f"{significant(engine.generation_tokens_per_s)} tok/s"
        )
    if snapshot.host is not None and snapshot.host.memory_used_bytes is not None:
        cpu, used = snapshot.host.cpu_percent, memory(snapshot.host.memory_used_bytes)
        lines.append(f"host: CPU {fixed(cpu, 0)} %, memory {used} in use")
    if not snapshot.gpus and snapshot.telemetry:
        lines.append(f"GPUs: {snapshot.telemetry}")
    for gpu in snapshot.gpus:
        sample, host = gpu.sample, f" in {gpu.static.host}" if gpu.static.host else ""
        if sample is None:
            lines.append(f"gpu {gpu.static.index}: {gpu.static.name}{host}, no sample")
            continue
        held = UNKNOWN if sample.hbm_used_bytes is None else memory(sample.hbm_used_bytes)
        lines.append(
            f"gpu {gpu.static.index}: {gpu.static.name}{host}, {fixed(sample.gfx_percent, 0)} % busy, HBM {held}, "
            f"{fixed(sample.power_w, 0)} W, {fixed(sample.temperature_hotspot_c, 0)} C"
            + (f", {', '.join(gpu.flags)}" if gpu.flags else "")
        )
    lines += [f"{verdict.subject}: {verdict.text}" for verdict in snapshot.verdicts]
    return "\n".join(lines)
