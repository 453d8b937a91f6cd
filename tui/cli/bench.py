"""`vramp bench serve|latency|throughput`: the three published benchmarks, by the names that `vllm bench` gives them.

Each is an ordinary run of a profile made from the options, with another table. Options of `vllm bench` that have no
meaning here are accepted with a message if they change nothing that is measured, and otherwise refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from loadgen.errors import ProfileError
from loadgen.places import TRUST
from loadgen.profile.document import apply_variant, build_profile, load_document, unset_keys
from loadgen.profile.schema import Profile
from loadgen.report import bench_table
from loadgen.schema.result import Result
from tui.catalog import find_profile
from tui.cli.headless import conclude, follow, open_run
from tui.cli.options import RUN_EXIT_CODES, Parser, add_result_options, add_shared, port_of, print_status

_ABOUT = {
    "serve": "Load on a server: a bounded number of concurrent requests, or a request rate.",
    "latency": "One batch after another on an idle server: the lowest latency it can have.",
    "throughput": "All requests at once: what the server can do when it never waits for work.",
}

_DIFFERS = {
    "serve": """\
what differs from `vllm bench serve`:
  --max-concurrency and --request-rate take lists, one table each; several rates end with the serving curve
  TTFT counts from the request on an open connection to the first generated token, never an empty chunk
  percentiles are nearest rank over HDR histograms; ITL divides a chunk by the tokens that it carried
  prompts differ from run to run unless --seed is given: a warm prefix cache would flatter the second run
""",
    "latency": """\
what differs from `vllm bench latency`, which runs the engine in its own process:
  the batch goes over HTTP as --batch-size streams at once, and its latency is that of the slowest stream
  every iteration has new prompts, and the temperature is 0 (vLLM: 1); a single user is --batch-size 1
""",
    "throughput": """\
what differs from `vllm bench throughput`, which runs the engine in its own process:
  every request is a stream over HTTP, all of them opened at once; the server's own queue holds them
  flags of the engine belong to the server: start it with them, or take --profile
""",
}

_TOKENS = "the server counts the tokens"
_FILES = "results go to runs/; --json FILE says where else"
_ALWAYS = "the result is always written; --json FILE says where else"
_NOT_NEEDED = {
    "--save-result": _ALWAYS,
    "--save-detailed": _ALWAYS,
    "--append-result": "every run has a result of its own",
    "--result-dir": _FILES,
    "--result-filename": _FILES,
    "--output-json": _ALWAYS,
    "--label": "results are named by their profile",
    "--metadata": "results are named by their profile",
    "--tokenizer": _TOKENS,
    "--tokenizer-mode": _TOKENS,
    "--skip-tokenizer-init": _TOKENS,
    "--trust-remote-code": "no code of the model runs here",
    "--disable-tqdm": "there is no progress bar without a terminal",
    "--disable-detokenize": "the server sends text",
    "--ready-check-timeout-sec": "the server is always checked before the load",
}
"""Options that change nothing that is measured: accepted, with a message."""

_SAMPLING = ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
_RAMPS = ("--ramp-up-strategy", "--ramp-up-start-rps", "--ramp-up-end-rps")
_REFUSED = {
    "--n": "one answer to a request is measured",
    "--use-beam-search": "one answer to a request is measured",
    "--prefix-len": "for shared prefixes use `vramp run` and a profile",
    **dict.fromkeys(_RAMPS, "ramps go by time: use `vramp run` and plan.ramp in a profile"),
    "--probe-request-rate": "there is only one load",
    "--self-timed": "for recorded schedules use `vramp run` and a profile",
    "--lora-modules": "use --set 'load.models={adapter=1}'",
    "--lora-path": "use --set 'load.models={adapter=1}'",
    "--header": "only an API key can be sent: --api-key-env",
    "--insecure": "certificates are always checked",
    **{f"--{name.replace('_', '-')}": f"use --extra-body '{{\"{name}\": ...}}'" for name in _SAMPLING},
    "--async-engine": "requests always go over HTTP",
    "--tensor-parallel-size": "a flag of the server: start it with that, or take --profile",
}
"""Options that would change what is measured: refused, with the alternative."""
_NEUTRAL = (["0"], ["0.0"])  # values of refused options that have no effect; `--n 1` too

_DATASETS = {"random": None, "sharegpt": "sharegpt", "custom": "jsonl"}  # by vLLM's name, vramp's name of the format
_BACKENDS = {"openai": "completions", "vllm": "completions", "openai-chat": "chat"}
_ENDPOINTS = {"/v1/completions": "completions", "/v1/chat/completions": "chat", "/v1/responses": "responses"}
_METRICS = ("ttft", "tpot", "itl", "e2el")
_RANDOM_ISL, _RANDOM_OSL = 1024, 128
_SERVER_KEYS = frozenset(
    {"endpoint", "extra_body", "models", "temperature", "timeout_s", "stall_timeout_s", "connect_timeout_s", "workers"}
)
"""What a benchmark takes from the profile's load: how to connect to this server, but not what is sent."""


def bench(options: argparse.Namespace) -> int:
    """Run one of the benchmarks and print its table; the exit codes are those of `vramp run`."""
    for flag, why in _NOT_NEEDED.items():
        if _given(options, flag) is not None:
            print_status(f"vramp: {flag} is not needed: {why}")
    profile, where = profile_of(options)
    run = open_run(profile, where, options)
    interrupted = asyncio.run(follow(run))
    table: Callable[[Result], str]
    match options.benchmark:
        case "latency":
            table = bench_table.latency_table
        case "throughput":
            table = bench_table.throughput_table
        case _:
            metrics, percents = options.percentile_metrics, options.metric_percentiles
            table = partial(bench_table.serve_tables, metrics=metrics, percents=percents)
    return conclude(run, interrupted=interrupted, table=table)


def profile_of(options: argparse.Namespace) -> tuple[Profile, str]:
    """The profile that the options describe, and its name in messages; raises `ProfileError`."""
    _refuse(options)
    document, where = _server_document(options)
    load = {key: value for key, value in document.get("load", {}).items() if key in _SERVER_KEYS}
    for key in ("stages", "plan", "slo"):
        document.pop(key, None)
    # The tables are those of `vllm bench`, which counts what is sent at once like everything else.
    endpoint: str | None = _BACKENDS.get(options.backend)  # None: the profile's
    if options.endpoint is not None:
        if options.endpoint not in _ENDPOINTS:
            raise ProfileError(f"--endpoint {options.endpoint}: expected one of {', '.join(_ENDPOINTS)}")
        endpoint = _ENDPOINTS[options.endpoint]
    chosen = {"endpoint": endpoint, "seed": options.seed, "workers": options.workers}
    load |= {"first_wave": "counted"} | {key: value for key, value in chosen.items() if value is not None}
    document |= {"load": load, "canary": {"enabled": False}}
    _PARTS[options.benchmark](options, document)
    return build_profile(document, where=where, overrides=options.set), where


def _server_document(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    name = f"bench-{options.benchmark}"
    if options.profile is None:
        url = options.base_url or f"http://{options.host}:{options.port}"
        document: dict[str, Any] = {"name": name, "server": {"engine": "attach", "url": url}}
        where = "command line"
    else:
        path = find_profile(options.profile)
        document, where = apply_variant(load_document(path), options.variant, where=str(path)), str(path)
        document["name"] = f"{document.get('name', 'unnamed')}-{name}"
    unset_keys(document, options.unset, before=document)
    server = document.setdefault("server", {})
    chosen = {key: getattr(options, key) for key in ("model", "served_model_name", "api_key_env")}
    server.update({key: value for key, value in chosen.items() if value is not None})
    return document, where


def _serve(options: argparse.Namespace, document: dict[str, Any]) -> None:
    load = document["load"]
    load.update(_prompts(options), requests=options.num_prompts, warmup=options.num_warmups)
    if options.temperature is not None:
        load["temperature"] = options.temperature
    if options.extra_body is not None:
        try:
            load["extra_body"] = json.loads(options.extra_body)
        except ValueError as error:
            raise ProfileError(f"--extra-body {options.extra_body}: not valid JSON: {error}") from None
        if not isinstance(load["extra_body"], dict):
            example = "'{\"top_k\": 20}'"
            raise ProfileError(f"--extra-body {options.extra_body}: expected a JSON object, such as {example}")
    if options.request_rate is None:
        load["concurrency"] = options.max_concurrency or [options.num_prompts]
    else:
        arrival = "poisson" if options.burstiness == 1 else f"gamma:{options.burstiness:g}"
        bound = {"max_concurrency": options.max_concurrency[0]} if options.max_concurrency else {}
        load.update(rate=options.request_rate, arrival=arrival, **bound)
    if options.goodput:
        document["slo"] = {}
        for text in options.goodput:
            metric, separator, limit_ms = text.partition(":")
            name = {"e2el": "e2e"}.get(metric, metric)
            if not separator or name not in ("ttft", "tpot", "itl", "e2e"):
                known = "ttft, tpot, itl or e2el and milliseconds, such as ttft:500"
                raise ProfileError(f"--goodput {text}: expected {known}")
            document["slo"][name] = f"{limit_ms}ms"


def _latency(options: argparse.Namespace, document: dict[str, Any]) -> None:
    batch = {"concurrency": options.batch_size, "requests": options.batch_size}
    labels = [f"warm-up {number + 1}" for number in range(options.num_iters_warmup)]
    labels += [f"{bench_table.ITERATION} {number + 1}" for number in range(options.num_iters)]
    document["load"].update(isl=options.input_len, osl=options.output_len)
    document["stages"] = [batch | {"label": label} for label in labels]


def _throughput(options: argparse.Namespace, document: dict[str, Any]) -> None:
    count = options.num_prompts
    document["load"].update(_prompts(options), requests=count, concurrency=[count], warmup=options.num_warmups)


_PARTS = {"serve": _serve, "latency": _latency, "throughput": _throughput}


def _prompts(options: argparse.Namespace) -> dict[str, Any]:
    """Random prompts have answers without an end of their own, those of a dataset end; as in vLLM."""
    if options.dataset_path is not None:
        form = _DATASETS[options.dataset_name]
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


# The options.


def _number(kind: type[int] | type[float], what: str, holds: Callable[[float], bool]) -> Callable[[str], Any]:
    """A parser of numbers for which `holds` is true."""

    def parsed(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not holds(value):
            raise argparse.ArgumentTypeError(f"{text!r}: expected {what}")
        return value

    return parsed


_count = _number(int, "a whole number above 0", lambda value: value > 0)
_any_count = _number(int, "a whole number", lambda value: value >= 0)
_positive = _number(float, "a number above 0", lambda value: 0 < value < math.inf)
_share = _number(float, "a number from 0 to below 1", lambda value: 0 <= value < 1)
_percent = _number(float, "percents", lambda value: 0 < value <= 100)


def _list_of(parsed: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [parsed(part) for part in text.split(",")]


def _metric(name: str) -> str:
    if name not in _METRICS:
        raise argparse.ArgumentTypeError(f"{name!r}: expected some of {','.join(_METRICS)}")
    return name


def bench_parser() -> argparse.ArgumentParser:
    """The options of each benchmark; `benchmark` is its name."""
    parser = Parser(prog="vramp bench", description="The three published benchmarks, with the options of `vllm bench`.")
    kinds = parser.add_subparsers(dest="benchmark", required=True, metavar="serve|latency|throughput")
    for name, add in (("serve", _add_serve), ("latency", _add_latency), ("throughput", _add_data)):
        kind = kinds.add_parser(
            name,
            help=_ABOUT[name],
            description=_ABOUT[name],
            epilog=_DIFFERS[name] + "\n" + RUN_EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        group = kind.add_argument_group("server")
        group.add_argument("--profile", metavar="P", help="start the server of this profile, and stop it at the end")
        add_shared(group, "--variant")
        group.add_argument("--base-url", metavar="URL", help="a running server")
        group.add_argument("--host", default="127.0.0.1", help="in place of --base-url (default: 127.0.0.1)")
        group.add_argument("--port", type=port_of, default=8000, help="(default: 8000)")
        add_shared(group, "--model")
        group.add_argument("--served-model-name", metavar="M", help="its name in the API, if different")
        group.add_argument("--backend", choices=_BACKENDS, help="(default: openai, which is completions)")
        group.add_argument("--endpoint", metavar="PATH", help=" | ".join(_ENDPOINTS))
        add_shared(group, "--api-key-env")
        add(kind.add_argument_group("load"))
        group = kind.add_argument_group("run")
        group.add_argument("--seed", type=int, help="make the prompts and the schedule reproducible")
        group.add_argument("--workers", type=int, metavar="N", help="worker processes")
        add_shared(group, "--set", "--unset", TRUST)
        add_result_options(group)
        for flag in (*_NOT_NEEDED, *_REFUSED):
            kind.add_argument(flag, nargs="*", help=argparse.SUPPRESS)
    return parser


def _refuse(options: argparse.Namespace) -> None:
    """Refuse options with which something else would be measured; raises `ProfileError`."""
    for flag, why in _REFUSED.items():
        given = _given(options, flag)
        if given is not None and given not in _NEUTRAL and (flag, given) != ("--n", ["1"]):
            raise ProfileError(f"{flag}: not in vramp: {why}")
    if options.profile is None and options.variant is not None:
        raise ProfileError("--variant: needs --profile, whose variant it is")
    if options.profile is not None and options.base_url is not None:
        raise ProfileError("--base-url: is a server that runs already, and --profile starts one: give one of the two")
    if options.benchmark == "latency":
        return
    if (options.dataset_name == "random") == (options.dataset_path is not None):
        raise ProfileError("--dataset-path goes with --dataset-name sharegpt: give both, or none for random prompts")
    if options.random_prefix_len and options.random_range_ratio:
        raise ProfileError("--random-prefix-len: is a share of each prompt here; give it without --random-range-ratio")
    if options.benchmark == "serve" and options.request_rate and len(options.max_concurrency or []) > 1:
        raise ProfileError("--max-concurrency: with --request-rate it bounds every stage; give one number")


def _given(options: argparse.Namespace, flag: str) -> list[str] | None:
    given: list[str] | None = getattr(options, flag.lstrip("-").replace("-", "_"))
    return given


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset-name", choices=_DATASETS, default="random", help="(default: random)")
    group.add_argument("--dataset-path", metavar="FILE", help="the file of the dataset")
    group.add_argument("--random-input-len", "--input-len", dest="input_len", type=_count, metavar="N", help="(1024)")
    group.add_argument(
        "--random-output-len", "--sharegpt-output-len", "--output-len", dest="output_len", type=_count,
        metavar="N", help="(random: 128; sharegpt: as in the data)",
    )  # fmt: skip
    group.add_argument("--random-range-ratio", type=_share, default=0.0, metavar="R", help="lengths vary by +-R")
    group.add_argument(
        "--random-prefix-len",
        type=_any_count,
        default=0,
        metavar="N",
        help="tokens of a common prefix",
    )
    group.add_argument("--num-prompts", type=_count, default=1000, metavar="N", help="requests (default: 1000)")
    group.add_argument("--num-warmups", type=_any_count, default=0, metavar="N", help="warm-up requests, not counted")
    group.add_argument("--ignore-eos", action="store_true", help="always, for random prompts")


def _add_serve(group: argparse._ArgumentGroup) -> None:
    _add_data(group)
    group.add_argument(
        "--max-concurrency", type=_list_of(_count), metavar="N[,N...]", help="closed loop; with a rate, an upper bound"
    )
    group.add_argument(
        "--request-rate",
        type=lambda text: None if text == "inf" else _list_of(_positive)(text),
        metavar="R[,R...]|inf",
        help="open loop (default: inf, at once)",
    )
    group.add_argument("--burstiness", type=_positive, default=1.0, metavar="B", help="1 is Poisson (default)")
    group.add_argument("--temperature", type=float, metavar="T", help="(default: 0, or the profile's)")
    group.add_argument("--extra-body", metavar="JSON", help="fields to add to every request")
    group.add_argument("--goodput", nargs="+", metavar="METRIC:MS", help="limits of a good request: ttft:500 tpot:50")
    group.add_argument(
        "--percentile-metrics", type=_list_of(_metric), default=list(_METRICS), metavar="ttft,tpot,itl,e2el",
        help="(default: all of them)",
    )  # fmt: skip
    group.add_argument(
        "--metric-percentiles", type=_list_of(_percent), default=[99.0], metavar="P[,P...]", help="(default: 99)"
    )


def _add_latency(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--input-len", type=_count, default=32, metavar="N", help="(default: 32)")
    group.add_argument("--output-len", type=_count, default=128, metavar="N", help="(default: 128)")
    group.add_argument("--batch-size", type=_count, default=8, metavar="N", help="streams at once (default: 8)")
    group.add_argument("--num-iters", type=_count, default=30, metavar="N", help="(default: 30)")
    group.add_argument("--num-iters-warmup", type=_any_count, default=10, metavar="N", help="(default: 10)")
