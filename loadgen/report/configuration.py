"""The configuration of a run, and the differences between two runs.

Settings that always differ (ports, addresses, seeds), and loads, which the stages show themselves, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from loadgen.metrics.mfu import flags_of
from loadgen.record.start import differences
from loadgen.record.subject import hardware_of, model_of
from loadgen.schema.result import Result

_NOISE = frozenset({"port", "host", "url", "urls", "served_model_name", "api_key_env", "name", "label", "cidfile"})
_LOADS = ("load.concurrency", "load.rate", "load.shapes")
_BOX = ("engine", "vllm_version", "max_model_len", "host", "cpu", "cpu_cores", "memory_bytes", "kernel", "python")
_SENT = (
    "endpoint data trace prefix turns sessions models extra_body headers cancel temperature ignore_eos max_concurrency"
).split()
"""Keys of `load` that change the kind of requests."""
_FILES = ("load.data", "load.sessions.data")  # compared by their checksums
_READ = ("host.", "gpu.firmware.")  # where one box does not tell, nothing is known to differ
_SIMULATOR = "simulator"


def flattened(document: object, prefix: str = "") -> dict[str, object]:
    """A document as dotted keys and values, without empty or unknown ones: `{"load.isl": 512}`."""
    if not isinstance(document, dict):
        return {prefix: document}
    flat: dict[str, object] = {}
    for key, value in document.items():
        if value not in (None, [], {}, ""):
            flat |= flattened(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


class Setting(msgspec.Struct, frozen=True):
    """One key whose value differs; None: not set."""

    key: str
    a: str | None
    b: str | None


def configuration_differences(a: Result, b: Result) -> list[Setting]:
    """Every key that differs, in the order of A's document: model, hardware, engine, server, load, box.

    With another tool's result, which contains little of this, only keys that both have.
    """
    values_a, values_b = _configuration(a), _configuration(b)
    keys = list(dict.fromkeys([*values_a, *values_b]))
    if _is_foreign(a, b):
        keys = [key for key in _common(values_a, values_b) if key not in ("gpus", "engine", "vramp", "workers")]
    known = [key for key in keys if not key.startswith(_READ) or (key in values_a and key in values_b)]
    found = [Setting(key, values_a.get(key), values_b.get(key)) for key in known]
    changed = [setting for setting in found if setting.a != setting.b]
    if a.server is None or b.server is None:
        return changed
    return changed + [Setting(one.what, one.before, one.now) for one in differences(a.server.start, b.server.start)]


def settings_of(result: Result) -> dict[str, str]:
    """The settings that may explain other figures; not the versions of engine and vramp, nor what each run draws."""
    return {
        key: value
        for key, value in _configuration(result).items()
        if key not in ("vllm_version", "vramp", "server.docker.image", "server.command")
        and not key.startswith("workers")
    }


def caveats(result: Result, name: str) -> list[str]:
    """What makes a whole run's figures less reliable than they look."""
    found = []
    if result.measured_by is not None:
        found.append(f"{name} was measured by {result.measured_by}, which does not say whether its client kept up")
    if result.state != "complete":
        found.append(f"{name} is not complete: {result.state.replace('_', ' ')}: {result.reason.partition(chr(10))[0]}")
    if result.client.timestamps == "user":
        found.append(f"{name} has no kernel timestamps: its latencies contain the client's own delay")
    return found


def unlikeness(a: Result, b: Result) -> Iterator[str]:
    """Why B is not comparable with A."""
    model_a, model_b = model_of(a), model_of(b)
    if model_a != model_b:
        yield f"another model: {model_a} and {model_b}"
    foreign = _is_foreign(a, b)
    simulated = [result.environment.get("engine") == _SIMULATOR for result in (a, b)]
    if simulated[0] != simulated[1] and not foreign:
        yield "one of them is a simulator"
    load_a, load_b = a.profile.get("load") or {}, b.profile.get("load") or {}
    sent = [key for key in _common(load_a, load_b) if key in _SENT] if foreign else _SENT
    flat_a, flat_b = (flattened({key: load.get(key) for key in sent}, "load") for load in (load_a, load_b))
    for key in dict.fromkeys([*flat_a, *flat_b]):
        if flat_a.get(key) != flat_b.get(key) and not (key in _FILES and a.data is not None and b.data is not None):
            yield f"another {key}: {_text(flat_a.get(key))} and {_text(flat_b.get(key))}"
    if a.data is not None and b.data is not None and a.data.sha256 != b.data.sha256:
        yield f"other data: sha256 {a.data.sha256[:12]} and {b.data.sha256[:12]}"
    if load_a.get("sessions") and load_b.get("sessions") and load_a.get("seed") != load_b.get("seed"):
        seeds = f"{_text(load_a.get('seed'))} and {_text(load_b.get('seed'))}"
        yield f"another load.seed: {seeds}, so other sessions begin, at other points"
    for key in ("isl", "osl"):
        one, other = load_a.get(key), load_b.get(key)
        # Plain numbers are compared per stage.
        if one != other and (isinstance(one, str) or isinstance(other, str)) and not foreign:
            yield f"another load.{key}: {_text(one)} and {_text(other)}"


def _is_foreign(a: Result, b: Result) -> bool:
    """Whether one of them is from another tool."""
    return a.measured_by is not None or b.measured_by is not None


def _common(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    return [key for key in a if key in b]


def _configuration(result: Result) -> dict[str, str]:
    profile, environment = result.profile, result.environment
    flat: dict[str, Any] = {"model": model_of(result), "gpus": hardware_of(result)}
    flat |= {key: environment.get(key) for key in _BOX}
    if result.gpus:
        # Of the first GPU: health verdicts report GPUs that differ within a box.
        names = ("firmware", "compute_partition", "memory_partition", "hbm_total_bytes", "power_cap_default_w")
        flat |= flattened({name: getattr(result.gpus[0], name) for name in names}, "gpu")
        versions = flattened(result.telemetry_meta or {}, "telemetry")
        flat |= {key: value for key, value in versions.items() if "version" in key or "driver" in key}
    flat |= flattened(environment.get("settings") or {}, "host")
    flat |= flattened(profile.get("server") or {}, "server")
    flat |= {f"server.args.{flag}": value for flag, value in flags_of(environment.get("server_command") or []).items()}
    flat |= {f"server.env.{name}": value for name, value in (environment.get("server_env") or {}).items()}
    flat |= flattened(profile.get("load") or {}, "load")
    flat |= {"slo": profile.get("slo") or None, "vramp": result.vramp_version, "workers": result.client.workers}
    realtime = result.client.realtime
    if realtime is not None:  # in words, so that slightly different shares compare equal
        flat["workers.realtime"] = "never" if realtime < 0.05 else "always" if realtime > 0.95 else "at times"
    placed = result.client.placement
    flat["workers.cpus"] = placed.cpus if placed is not None and placed.pinned else None
    return {key: _text(value) for key, value in flat.items() if value is not None and not _is_noise(key)}


def _is_noise(key: str) -> bool:
    name = key.rpartition(".")[2]
    return (key.startswith("server.") and name in _NOISE) or name == "seed" or key.startswith(_LOADS)


def _text(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={_text(one)}" for key, one in value.items())
    if isinstance(value, list):
        return " ".join(_text(one) for one in value)
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else str(value)
