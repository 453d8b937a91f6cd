"""The options of `vramp bench`: those of `vllm bench` that mean something here, and a word about those that do not."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from loadgen.errors import ProfileError
from tui.cli.options import port_of

_ABOUT = {
    "serve": "Concurrent streams against a server: a bounded number of them, or so many requests a second.",
    "latency": "One batch after the other, nothing beside it: the floor of the latency.",
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
  --batch-size is 1 unless given (vLLM: 8), every iteration has new prompts, the temperature is 0 (vLLM: 1)
""",
    "throughput": """\
what differs from `vllm bench throughput`, which runs the engine in its own process:
  every request is a stream over HTTP, all of them opened at once; the server's own queue holds them
  flags of the engine belong to the server: start it with them, or take --profile
""",
}

_EXIT_CODES = """\
exit codes: 0 done; 1 the run happened and something in it failed; 2 usage or profile;
            3 the server could not be reached or started; 130 interrupted (the partial result is written)
"""

_NOT_NEEDED = {
    "--save-result": "the result is always written; --json FILE says where else",
    "--save-detailed": "the result is always written; --json FILE says where else",
    "--append-result": "every run has a result of its own",
    "--result-dir": "results go to runs/; --json FILE says where else",
    "--result-filename": "results go to runs/; --json FILE says where else",
    "--output-json": "the result is always written; --json FILE says where else",
    "--label": "results are named by their profile",
    "--metadata": "results are named by their profile",
    "--tokenizer": "the server counts the tokens",
    "--tokenizer-mode": "the server counts the tokens",
    "--skip-tokenizer-init": "the server counts the tokens",
    "--trust-remote-code": "no code of the model runs here",
    "--disable-tqdm": "there is no progress bar without a terminal",
    "--disable-detokenize": "the server sends text",
    "--ready-check-timeout-sec": "the server is always asked before the load",
}
"""Options that change nothing that is measured: told, and left out."""

_REFUSED = {
    "--n": "one answer to a request is measured",
    "--use-beam-search": "one answer to a request is measured",
    "--prefix-len": "for shared prefixes use `vramp run` and a profile",
    "--ramp-up-strategy": "ramps go by time: use `vramp run` and plan.ramp in a profile",
    "--ramp-up-start-rps": "ramps go by time: use `vramp run` and plan.ramp in a profile",
    "--ramp-up-end-rps": "ramps go by time: use `vramp run` and plan.ramp in a profile",
    "--probe-request-rate": "there is no second load beside the first",
    "--self-timed": "for recorded schedules use `vramp run` and a profile",
    "--lora-modules": "use --set 'load.models={adapter=1}'",
    "--lora-path": "use --set 'load.models={adapter=1}'",
    "--header": "only an API key can be sent: --api-key-env",
    "--insecure": "certificates are always checked",
    "--top-p": "use --extra-body '{\"top_p\": ...}'",
    "--top-k": "use --extra-body '{\"top_k\": ...}'",
    "--min-p": "use --extra-body '{\"min_p\": ...}'",
    "--frequency-penalty": "use --extra-body '{\"frequency_penalty\": ...}'",
    "--presence-penalty": "use --extra-body '{\"presence_penalty\": ...}'",
    "--repetition-penalty": "use --extra-body '{\"repetition_penalty\": ...}'",
    "--async-engine": "the server is always asked over HTTP",
    "--tensor-parallel-size": "a flag of the server: start it with that, or take --profile",
}
"""Options that would change what is measured: an error with a way out."""
_NEUTRAL = (["0"], ["0.0"])  # values with which a refused option asks for nothing; `--n 1` too

DATASETS = {"random": None, "sharegpt": "sharegpt", "custom": "jsonl"}  # by vLLM's name, vramp's name of the format
_BACKENDS = {"openai": "completions", "vllm": "completions", "openai-chat": "chat"}
_ENDPOINTS = {"/v1/completions": "completions", "/v1/chat/completions": "chat", "/v1/responses": "responses"}


def parse(words: list[str]) -> argparse.Namespace:
    """The options of one benchmark; `benchmark` is its name."""
    parser = argparse.ArgumentParser(
        prog="vramp bench", description="The three published benchmarks, with the options of `vllm bench`."
    )
    kinds = parser.add_subparsers(dest="benchmark", required=True, metavar="serve|latency|throughput")
    for name, add in (("serve", _add_serve), ("latency", _add_latency), ("throughput", _add_throughput)):
        kind = kinds.add_parser(
            name,
            help=_ABOUT[name],
            description=_ABOUT[name],
            epilog=_DIFFERS[name] + "\n" + _EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _add_server(kind)
        add(kind.add_argument_group("load"))
        _add_run(kind)
        for flag in (*_NOT_NEEDED, *_REFUSED):
            kind.add_argument(flag, nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def notes(options: argparse.Namespace) -> list[str]:
    """A line about each option that is not needed."""
    return [f"{flag} is not needed: {why}" for flag, why in _NOT_NEEDED.items() if _given(options, flag) is not None]


def refuse(options: argparse.Namespace) -> None:
    """Refuse what would measure something else than was asked for; raises `ProfileError`."""
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


def endpoint(options: argparse.Namespace) -> str | None:
    """The endpoint by vramp's name; None leaves it to the profile. Raises `ProfileError`."""
    if options.endpoint is not None:
        if options.endpoint not in _ENDPOINTS:
            raise ProfileError(f"--endpoint {options.endpoint}: expected one of {', '.join(_ENDPOINTS)}")
        return _ENDPOINTS[options.endpoint]
    return _BACKENDS[options.backend] if options.backend is not None else None


def _given(options: argparse.Namespace, flag: str) -> list[str] | None:
    given: list[str] | None = getattr(options, flag.lstrip("-").replace("-", "_"))
    return given


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--profile", metavar="P", help="start the server of this profile, and stop it in the end")
    group.add_argument("--variant", metavar="NAME", help="one of the profile's [variants]")
    group.add_argument("--base-url", metavar="URL", help="a server that runs already")
    group.add_argument("--host", default="127.0.0.1", help="of it, in place of --base-url (default: 127.0.0.1)")
    group.add_argument("--port", type=port_of, default=8000, help="(default: 8000)")
    group.add_argument("--model", metavar="M", help="the served model (default: the first one served)")
    group.add_argument("--served-model-name", metavar="M", help="its name in the API, where that is another")
    group.add_argument("--backend", choices=_BACKENDS, help="(default: openai, that is completions)")
    group.add_argument("--endpoint", metavar="PATH", help=" | ".join(_ENDPOINTS))
    group.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--seed", type=int, help="makes the prompts and the schedule reproducible")
    group.add_argument("--workers", type=int, metavar="N", help="worker processes")
    group.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override a profile key")
    group.add_argument("--json", metavar="FILE", type=Path, help="write the result here too")
    group.add_argument("--force", action="store_true", help="start even if the preflight says that it will not work")


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset-name", choices=DATASETS, default="random", help="(default: random)")
    group.add_argument("--dataset-path", metavar="FILE", help="of the dataset")
    group.add_argument("--random-input-len", "--input-len", dest="input_len", type=_count, metavar="N", help="(1024)")
    group.add_argument(
        "--random-output-len", "--sharegpt-output-len", "--output-len", dest="output_len", type=_count,
        metavar="N", help="(random: 128; sharegpt: as in the data)",
    )  # fmt: skip
    group.add_argument("--random-range-ratio", type=_share, default=0.0, metavar="R", help="lengths vary by +-R")
    group.add_argument("--random-prefix-len", type=_any_count, default=0, metavar="N", help="more tokens, all alike")
    group.add_argument("--num-prompts", type=_count, default=1000, metavar="N", help="requests (default: 1000)")
    group.add_argument("--num-warmups", type=_any_count, default=0, metavar="N", help="requests before, not counted")
    group.add_argument("--ignore-eos", action="store_true", help="random prompts always do")


def _add_serve(group: argparse._ArgumentGroup) -> None:
    _add_data(group)
    group.add_argument(
        "--max-concurrency", type=_counts, metavar="N[,N...]", help="closed loop; with a rate, its bound"
    )
    group.add_argument("--request-rate", type=_rates, metavar="R[,R...]|inf", help="open loop (default: inf, at once)")
    group.add_argument("--burstiness", type=_positive, default=1.0, metavar="B", help="1 is Poisson (default)")
    group.add_argument("--temperature", type=float, metavar="T", help="(default: 0, or the profile's)")
    group.add_argument("--extra-body", metavar="JSON", help="fields that go into every request")
    group.add_argument("--goodput", nargs="+", metavar="METRIC:MS", help="what a good request meets: ttft:500 tpot:50")
    group.add_argument(
        "--percentile-metrics", type=_metrics, default=list(METRICS), metavar="ttft,tpot,itl,e2el",
        help="(default: all of them)",
    )  # fmt: skip
    group.add_argument("--metric-percentiles", type=_percents, default=[99.0], metavar="P[,P...]", help="(default: 99)")


def _add_latency(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--input-len", type=_count, default=32, metavar="N", help="(default: 32)")
    group.add_argument("--output-len", type=_count, default=128, metavar="N", help="(default: 128)")
    group.add_argument("--batch-size", type=_count, default=1, metavar="N", help="streams at once (default: 1)")
    group.add_argument("--num-iters", type=_count, default=30, metavar="N", help="(default: 30)")
    group.add_argument("--num-iters-warmup", type=_any_count, default=10, metavar="N", help="(default: 10)")


def _add_throughput(group: argparse._ArgumentGroup) -> None:
    _add_data(group)


METRICS = ("ttft", "tpot", "itl", "e2el")


def _number(kind: Callable[[str], float], text: str, what: str, holds: Callable[[float], bool]) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not holds(value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected {what}")
    return value


def _count(text: str) -> int:
    return int(_number(int, text, "a whole number above 0", lambda value: value > 0))


def _any_count(text: str) -> int:
    return int(_number(int, text, "a whole number", lambda value: value >= 0))


def _positive(text: str) -> float:
    return _number(float, text, "a number above 0", lambda value: 0 < value < math.inf)


def _share(text: str) -> float:
    return _number(float, text, "a number from 0 to below 1", lambda value: 0 <= value < 1)


def _counts(text: str) -> list[int]:
    return [_count(part) for part in text.split(",")]


def _rates(text: str) -> list[float] | None:
    return None if text == "inf" else [_positive(part) for part in text.split(",")]


def _percents(text: str) -> list[float]:
    return [_number(float, part, "percents", lambda value: 0 < value <= 100) for part in text.split(",")]


def _metrics(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in METRICS:
            raise argparse.ArgumentTypeError(f"{name!r}: expected some of {','.join(METRICS)}")
    return names
