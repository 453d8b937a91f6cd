"""What a result is about, in words: its model, hardware, engine and time."""

from __future__ import annotations

from collections import Counter

from loadgen.schema.result import Result


def model_of(result: Result) -> str:
    """The model that answered, or was meant to."""
    server = result.profile.get("server") or {}
    named = result.environment.get("model") or server.get("served_model_name") or server.get("model")
    return str(named or result.profile.get("name") or "unknown model")


def hardware_of(result: Result) -> str:
    """The GPUs in words, each name with its count; the processor if no GPU is known."""
    counts = Counter(gpu.name for gpu in result.gpus)
    if counts:
        return ", ".join(f"{n} \N{MULTIPLICATION SIGN} {name}" if n > 1 else name for name, n in counts.items())
    return str(result.environment.get("cpu") or "unknown hardware")


def engine_of(result: Result) -> str:
    environment = result.environment
    engine, version = environment.get("engine"), environment.get("vllm_version")
    words = {"docker": "vLLM", "vllm": "vLLM", "simulator": "the simulator", "attach": "an attached server"}
    name = words.get(str(engine), str(engine or "no server"))
    return f"{name} {version}" if version and engine != "simulator" else name


def known_time(moment: str | None) -> str | None:
    """When something began or ended; None for the time that stands for that of a file without a date."""
    return None if moment is None or moment.startswith("1970-01-01") else moment
