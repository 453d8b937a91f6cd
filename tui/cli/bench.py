"""`vramp bench serve|latency|throughput`: the three published benchmarks, by the names that `vllm bench` gives them.

Each is a profile made from the options and an ordinary run: the same load, the same result, only another table.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from loadgen.errors import ProfileError, ResultError
from loadgen.format import harmless
from tui.cli import bench_options

if TYPE_CHECKING:
    from loadgen.profile import Profile
    from tui.cli.run import Table


def bench(words: list[str]) -> int:
    """Run one of the benchmarks and print its table; the exit codes are those of `vramp run`."""
    import asyncio

    from loadgen.run.run import Run
    from tui.cli.progress import follow
    from tui.cli.run import conclude

    options = bench_options.parse(words)
    for note in bench_options.notes(options):
        print(harmless(f"vramp: {note}"), file=sys.stderr)
    profile, where = profile_of(options)
    table = _table(options)
    try:
        run = Run(profile, where=where, json_path=options.json, force=options.force)
    except ResultError as error:
        raise ProfileError(str(error)) from error
    interrupted = asyncio.run(follow(run))
    return conclude(run, interrupted=interrupted, table=table)


def profile_of(options: argparse.Namespace) -> tuple[Profile, str]:
    """The profile that the options describe, and its name in messages; raises `ProfileError`."""
    from loadgen.profile import build_profile

    bench_options.refuse(options)
    document, where = _server_document(options)
    load = {key: value for key, value in document.get("load", {}).items() if key in _OF_THE_SERVER}
    for key in ("stages", "plan", "slo"):
        document.pop(key, None)
    # The tables are those of `vllm bench`, which counts what is sent at once like everything else.
    document["load"] = load | {"first_wave": "counted"} | _common_load(options)
    _PARTS[options.benchmark](options, document)
    return build_profile(document, where=where, overrides=options.set), where


_OF_THE_SERVER = frozenset(
    {"endpoint", "extra_body", "models", "temperature", "timeout_s", "stall_timeout_s", "connect_timeout_s", "workers"}
)
"""What a benchmark takes from the profile's load: how to speak to this server. What it sends is its own."""
_RANDOM_ISL, _RANDOM_OSL = 1024, 128


def _server_document(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from loadgen.profile import apply_variant, load_document
    from tui.catalog import find_profile

    name = f"bench-{options.benchmark}"
    if options.profile is None:
        url = options.base_url or f"http://{options.host}:{options.port}"
        server = {"engine": "attach", "url": url}
        document: dict[str, Any] = {"name": name, "server": server}
        where = "command line"
    else:
        path = find_profile(options.profile)
        document, where = apply_variant(load_document(path), options.variant, where=str(path)), str(path)
        document["name"] = f"{document.get('name', 'unnamed')}-{name}"
    server = document.setdefault("server", {})
    chosen = {
        "model": options.model,
        "served_model_name": options.served_model_name,
        "api_key_env": options.api_key_env,
    }
    server.update({key: value for key, value in chosen.items() if value is not None})
    return document, where


def _common_load(options: argparse.Namespace) -> dict[str, Any]:
    chosen = {
        "endpoint": bench_options.endpoint(options),
        "seed": options.seed,
        "workers": options.workers,
    }
    return {key: value for key, value in chosen.items() if value is not None}


def _serve(options: argparse.Namespace, document: dict[str, Any]) -> None:
    load = document["load"]
    load.update(_prompts(options), requests=options.num_prompts, warmup=options.num_warmups)
    if options.temperature is not None:
        load["temperature"] = options.temperature
    if options.extra_body is not None:
        load["extra_body"] = _json_object("--extra-body", options.extra_body)
    if options.request_rate is None:
        load["concurrency"] = options.max_concurrency or [options.num_prompts]
    else:
        load.update(_open_loop(options))
    if options.goodput:
        document["slo"] = dict(_limit(text) for text in options.goodput)


def _open_loop(options: argparse.Namespace) -> dict[str, Any]:
    arrival = "poisson" if options.burstiness == 1 else f"gamma:{options.burstiness:g}"
    bound = {"max_concurrency": options.max_concurrency[0]} if options.max_concurrency else {}
    return {"rate": options.request_rate, "arrival": arrival, **bound}


def _latency(options: argparse.Namespace, document: dict[str, Any]) -> None:
    from loadgen.report.bench_table import ITERATION

    batch = {"concurrency": options.batch_size, "requests": options.batch_size}
    labels = [f"warm-up {number + 1}" for number in range(options.num_iters_warmup)]
    labels += [f"{ITERATION} {number + 1}" for number in range(options.num_iters)]
    document["load"].update(isl=options.input_len, osl=options.output_len)
    document["stages"] = [batch | {"label": label} for label in labels]


def _throughput(options: argparse.Namespace, document: dict[str, Any]) -> None:
    everything = {"requests": options.num_prompts, "concurrency": [options.num_prompts], "warmup": options.num_warmups}
    document["load"].update(_prompts(options), **everything)


_PARTS = {"serve": _serve, "latency": _latency, "throughput": _throughput}


def _prompts(options: argparse.Namespace) -> dict[str, Any]:
    """Random prompts have answers without an end of their own, those of a dataset end; as in vLLM."""
    if options.dataset_path is not None:
        form = bench_options.DATASETS[options.dataset_name]
        data = {"data": options.dataset_path, "data_format": form, "osl": options.output_len or "data"}
        return data | {"ignore_eos": options.ignore_eos}
    prefix, isl, osl = options.random_prefix_len, options.input_len or _RANDOM_ISL, options.output_len or _RANDOM_OSL
    common = {"prefix": {"share": prefix / (prefix + isl)}} if prefix else {}
    ratio = options.random_range_ratio
    return {"isl": _around(prefix + isl, ratio), "osl": _around(osl, ratio), "ignore_eos": True, **common}


def _around(tokens: int, ratio: float) -> int | str:
    """A length, or lengths as far around it as vLLM draws them."""
    if ratio == 0:
        return tokens
    return f"uniform:{max(1, math.floor(tokens * (1 - ratio)))}:{math.ceil(tokens * (1 + ratio))}"


def _limit(text: str) -> tuple[str, str]:
    metric, separator, limit_ms = text.partition(":")
    name = {"e2el": "e2e"}.get(metric, metric)
    if not separator or name not in ("ttft", "tpot", "itl", "e2e"):
        raise ProfileError(f"--goodput {text}: expected ttft, tpot, itl or e2el and milliseconds, such as ttft:500")
    return name, f"{limit_ms}ms"


def _json_object(option: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ProfileError(f"{option} {text}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ProfileError(f"{option} {text}: expected a JSON object, such as '{{\"top_k\": 20}}'")
    return value


def _table(options: argparse.Namespace) -> Table:
    from functools import partial

    from loadgen.report import bench_table

    if options.benchmark == "latency":
        return bench_table.latency_table
    if options.benchmark == "throughput":
        return bench_table.throughput_table
    return partial(bench_table.serve_tables, metrics=options.percentile_metrics, percents=options.metric_percentiles)
