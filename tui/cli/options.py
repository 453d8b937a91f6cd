"""What the commands share: the options that choose and change a profile, parsers, messages, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import ipaddress
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from loadgen.errors import ProfileError, ResultError, VrampError, reported_as
from loadgen.format import harmless
from loadgen.masking import masked_text
from loadgen.places import TRUST, trust_all_users, write_named, write_whole
from loadgen.profile import BASE
from loadgen.searches import PLAN_KEYS, SEARCHES
from loadgen.vendors import TelemetryMode

if TYPE_CHECKING:
    from loadgen.profile.schema import Profile

INTERRUPTED = 130
"""The exit code of what the operator ended; the others are those of the errors."""
RUN_EXIT_CODES = """\
exit codes: 0 done; 1 something in the run failed; 2 usage or profile;
            3 the server could not be reached or started; 130 interrupted (the partial result is written)
"""
RUN_WORDS = "a run's folder, its name in runs/ or the beginning of it, or: last"
READER_GONE = (errno.EPIPE, errno.EIO)  # of stdout or stderr, be it a pipe or a terminal
STDOUT = Path("-")
_DEFAULT_PROFILE = "simulator"
_ENDS_WITHIN_S = 5


def end_by_signals() -> None:
    """Have SIGINT, SIGTERM and SIGHUP end the process at once, as an interrupt, until a run installs its own handlers.

    Not by an exception, which during an import or at exit would be a traceback or another exit code.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, lambda *_: os._exit(INTERRUPTED))


def end_within_seconds() -> None:
    """After `end_by_signals`: end even if the last lines cannot be written, as on a terminal stopped by Ctrl+S.

    For a run that a signal ended; after any other, the lines wait for a reader.
    """
    signal.alarm(_ENDS_WITHIN_S)


def print_status(text: str) -> None:
    """Print a line to stderr, as stdout is for data."""
    print(printable(text), file=sys.stderr, flush=True)


def print_text(text: str) -> None:
    print(printable(text))


def print_output(text: str) -> int:
    """Write data to stdout unchanged; return the exit code, because the caller goes on if that fails."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        return discard_stdout(error)
    return 0


def write_output(text: str, path: Path | None, *, mode: int | None = None) -> int:
    """Write data to a file, or to stdout; return the exit code. Raises `ResultError`.

    With a `mode`, for a file whose name the user did not choose, whatever has that name is replaced, not followed.
    """
    if path is None or path == STDOUT:
        return print_output(text)
    with reported_as(f"{path}: cannot be written"):
        if mode is None:
            write_named(path, text.encode())
        else:
            write_whole(path, text.encode(), mode=mode)
    return 0


@contextlib.contextmanager
def before_anything_runs() -> Iterator[None]:
    """Raise `ProfileError` in place of `ResultError`: a wrong file or folder is still a usage error."""
    try:
        yield
    except ResultError as error:
        raise ProfileError(str(error)) from error


def discard_stdout(error: OSError) -> int:
    """Discard what is still written to a stdout that failed, and return the exit code."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno in READER_GONE:
        return 0
    print_status(f"vramp: standard output cannot be written: {error.strerror}")
    return VrampError.exit_code


def printable(text: str) -> str:
    """Return a text without control characters and secrets."""
    return masked_text(harmless(text))


class Parser(argparse.ArgumentParser):
    """A parser that masks secrets in its error messages."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        super().exit(status, printable(message) if message is not None else None)


def parser_of(verb: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """The parser of a command, whose help keeps the lines of the epilog.

    Without abbreviations, or `--api-key KEY` would be taken for `--api-key-env`.
    """
    form = argparse.RawDescriptionHelpFormatter
    return Parser(prog=verb, description=description, epilog=epilog, formatter_class=form, allow_abbrev=False)


class Calling(argparse.Action):
    """Calls its `const` while it is parsed; for an option without a value."""

    def __call__(self, *_: object) -> None:
        self.const()


_SHARED: dict[str, dict[str, Any]] = {
    TRUST: {
        "action": Calling,
        "nargs": 0,
        "const": trust_all_users,  # right away, as profiles are read next
        "help": "also use profiles, folders and sockets of other users",
    },
    "--variant": {"metavar": "NAME", "help": "one of the profile's [variants]"},
    "--set": {"metavar": "KEY=VALUE", "action": "append", "default": [], "help": "override a profile key"},
    "--unset": {"metavar": "KEY", "action": "append", "default": [], "help": "remove a profile key"},
    "--model": {"metavar": "M", "help": "the served model (default: the first one served)"},
    "--api-key-env": {"metavar": "NAME", "help": "environment variable that holds the API key"},
    "--exporter": {
        "metavar": "URL",
        "action": "append",
        "help": "GPUs of another machine: the page of dcgm-exporter or AMD's device-metrics-exporter; may be repeated",
    },
}


def add_shared(parser: argparse._ActionsContainer, *flags: str) -> None:
    for flag in flags:
        parser.add_argument(flag, **_SHARED[flag])


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose a profile and change it."""
    parser.add_argument("profile", nargs="?", metavar="PROFILE", help="a TOML file, or a profile's name")
    add_shared(parser, "--variant", "--set", "--unset", TRUST)
    server = parser.add_argument_group("server")
    server.add_argument("--url", help="attach to a server that is already running")
    add_shared(server, "--model", "--api-key-env")
    server.add_argument("--image", metavar="IMAGE", help="container image; published: that of [reference.system]")
    load = parser.add_argument_group("load")
    load.add_argument("--endpoint", choices=("completions", "chat", "responses"))
    load.add_argument("--isl", metavar="SPEC", help="input tokens of a request: 4096, normal:512:128, uniform:64:512")
    load.add_argument("--osl", metavar="SPEC", help="output tokens of a request")
    load.add_argument("--data", metavar="FILE", help="prompts from ShareGPT JSON, JSONL, text or a trace; or: sample")
    load.add_argument("--sessions", metavar="FILE", help="sessions of agents, recorded ones; or: sample, generated")
    kind = load.add_mutually_exclusive_group()
    kind.add_argument("--concurrency", metavar="N[,N...]", help="closed loop, one stage each")
    kind.add_argument("--rate", metavar="R[,R...]", help="open loop, requests per second, one stage each")
    kind.add_argument("--ladder", metavar="N[,N...]", help="closed loop, one stage each; 64 alone: 1, 2, 4, ... 64")
    kind.add_argument("--ramp", metavar="A:B:TIME", help="closed loop, from A to B streams in this time: 1:64:60s")
    kind.add_argument("--search", choices=tuple(SEARCHES), help="find the knee, or the highest load within --slo")
    load.add_argument("--arrival", metavar="HOW", help="of open loop: poisson, constant, gamma:B or replay")
    load.add_argument("--requests", metavar="N", help="measured requests per stage")
    load.add_argument("--duration", metavar="30s", help="measured time per stage")
    load.add_argument("--warmup", metavar="N|5s", help="start of each stage to leave out: requests, or a time")
    load.add_argument("--workers", metavar="N", help="worker processes")
    load.add_argument("--seed", metavar="N", help="make the prompts and the schedule reproducible")
    load.add_argument(
        "--slo",
        metavar="ttft_p99=2s,...",
        help="limits on a stage (ttft=2s: on each stream; failed=1%%: on failures); exit code 1 if one is missed",
    )
    hosts = parser.add_argument_group("several machines").add_mutually_exclusive_group()
    hosts.add_argument("--hosts", metavar="A,B,...", help="send the load from these, by SSH: name, user@name:port")
    hosts.add_argument("--scheduler", metavar="ADDRESS", help="send the load from a Dask cluster: tcp://host:port")


def add_result_options(group: argparse._ArgumentGroup, *, json_alone: str | None = None) -> None:
    """Add the options of every command that runs one profile; `json_alone` is what `--json` without a file means."""
    nargs = None if json_alone is None else "?"
    group.add_argument(
        "--json", metavar="FILE", type=_file_of, nargs=nargs, const=json_alone, help="also write the result here"
    )
    group.add_argument("--junit", metavar="FILE", type=Path, help="write its limits as tests for CI systems")
    group.add_argument(
        "--alert",
        metavar="COMMAND",
        help="run this at each new bad verdict that holds for 5 s, with the verdict as JSON on its stdin; no shell",
    )
    group.add_argument("--force", action="store_true", help="start even if the preflight says that it will not work")
    group.add_argument(
        "--metrics-port", metavar="N", type=port_of, help="serve live metrics for Prometheus; 0: any port"
    )
    group.add_argument("--metrics-host", metavar="ADDRESS", default="127.0.0.1", help="(default: %(default)s)")


def _file_of(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is a URL, not a file; URLs come before --json")
    return Path(text)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run: its profile, where the result goes, what measures the GPUs."""
    add_profile_options(parser)
    group = parser.add_argument_group("run")
    add_result_options(group)
    group.add_argument(
        "--records",
        nargs="?",
        const="jsonl",
        choices=("jsonl", "parquet"),
        help="keep a row for each stream: records.jsonl (default) or records.parquet",
    )
    group.add_argument("--baseline", metavar="RUN", help="compare each stage with an earlier run or a baseline")
    group = parser.add_argument_group("telemetry")
    add_shared(group, "--exporter")
    telemetry = group.add_mutually_exclusive_group()
    telemetry.add_argument(
        "--telemetry", choices=get_args(TelemetryMode), help="what measures the GPUs (default: the profile's)"
    )
    telemetry.add_argument(
        "--replay-telemetry", metavar="FILE", type=Path, help="replay a capture of vramp doctor --dump instead"
    )


def profile_of(options: argparse.Namespace) -> tuple[Profile, str]:
    """The profile that the options describe, and its name in messages; raises `ProfileError`."""
    document, where = document_of(options)
    return profile_from(document, where, options), where


def document_of(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """The document that the options name, as it is, and its name in messages; raises `ProfileError`."""
    from loadgen.profile.document import load_document
    from tui.catalog import find_profile

    if options.url is not None and options.profile is None:
        return {"name": "attach"}, "command line"
    path = find_profile(options.profile or _DEFAULT_PROFILE)
    return load_document(path), str(path)


def variants_from(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> dict[str, Profile]:
    """The profiles with which the server can be restarted, by variant; empty if the document has no variants.

    "base" is the document without a variant. Profiles that the options make invalid are left out.
    """
    from loadgen.profile.document import variant_names

    names = variant_names(document) if options.url is None else []
    profiles = {}
    for name in dict.fromkeys([BASE, *names] if names else []):
        of_variant = argparse.Namespace(**vars(options) | {"variant": name if name in names else None})
        with contextlib.suppress(ProfileError):
            profiles[name] = profile_from(document, where, of_variant)
    return profiles


def profile_from(document: Mapping[str, Any], where: str, options: argparse.Namespace) -> Profile:
    """The profile of a document with the variant and the options applied; raises `ProfileError`."""
    from loadgen.profile.document import apply_variant, build_profile, unset_keys

    chosen = apply_variant(document, options.variant, where=where)
    unset_keys(chosen, options.unset, before=document)
    if options.url is not None:
        chosen["server"] = {"engine": "attach", "url": options.url}
    tables = [chosen.get(name, {}) for name in ("server", "load", "plan", "cluster")]
    stages = chosen.get("stages", [])
    # Otherwise `build_profile` says what is wrong.
    if isinstance(stages, list) and all(isinstance(table, dict) for table in [*tables, *stages]):
        _set_options(chosen, options)
    return build_profile(chosen, where=where, overrides=options.set)


def _set_server(document: dict[str, Any], options: argparse.Namespace) -> None:
    """Set what measures the GPUs, and the server; raises `ProfileError` for an image where none can be run."""
    telemetry = getattr(options, "telemetry", None)  # `vramp check` has no such option
    exporters = getattr(options, "exporter", None)
    if telemetry is not None or exporters:
        given = document.get("telemetry", {})
        table = {"mode": given} if isinstance(given, str) else dict(given) if isinstance(given, dict) else {}
        table |= {"mode": telemetry} if telemetry is not None else {}
        document["telemetry"] = table | ({"exporters": exporters} if exporters else {})

    server = document.setdefault("server", {})
    if options.model is not None:
        server["model"] = options.model
    if options.api_key_env is not None:
        server["api_key_env"] = options.api_key_env
    image = getattr(options, "image", None)  # nor has `vramp monitor` this one
    if image is None:
        return
    if server.get("engine") != "docker" or not isinstance(server.get("docker"), dict):
        raise ProfileError(
            f"--image: engine {server.get('engine')!r} runs no container; with --variant docker, many profiles do"
        )
    if image == "published":
        reference = document.get("reference")
        system = reference.get("system") if isinstance(reference, dict) else None
        image = system.get("image", "") if isinstance(system, dict) else ""
        if not image:
            raise ProfileError("--image published: the profile's [reference.system] names none")
    server["docker"]["image"] = image


def _set_options(document: dict[str, Any], options: argparse.Namespace) -> None:
    from loadgen.profile.load import Load

    _set_server(document, options)
    load = document.setdefault("load", {})
    plan = document.get("plan", {})
    chosen = {name: text for name, text in vars(options).items() if name in Load.model_fields and text is not None}
    lengths = {"requests", "duration"} if chosen.keys() & {"requests", "duration"} else set()
    requested = _plan_of(options)
    if chosen.keys() & {"concurrency", "rate"} or requested:
        # The options replace the plan of the profile.
        document.pop("stages", None)
        for name in ("rate", "rate_points", *(["arrival"] if load.get("arrival") == "replay" else [])):
            load.pop(name, None)
        for name in (*PLAN_KEYS, *(["completed"] if "search" not in requested and "settle" not in plan else [])):
            plan.pop(name, None)
    for key in getattr(options, "without", ()):  # of `vramp monitor`, which sends nothing
        table, _, name = key.partition(".")
        document.get(table, {}).pop(name, None)
    if getattr(options, "every", None) is not None:
        document.setdefault("plan", {})["every"] = options.every
    if requested:
        document.setdefault("plan", {}).update(requested)
    for stage in document.get("stages", []):
        for name in chosen.keys() | lengths:
            stage.pop(name, None)
    if chosen.keys() & {"isl", "osl"}:
        load.pop("shapes", None)
    for name in lengths:
        load.pop(name, None)
    if "sessions" in chosen:
        load["sessions"] = {**load.get("sessions", {}), "data": chosen.pop("sessions")}
    load.update({name: _parse_option(name, text) for name, text in chosen.items()})
    _set_cluster(document, options)
    if options.slo is not None:
        document["slo"] = {}
        for entry in options.slo.split(","):
            name, separator, limit = entry.partition("=")
            if not separator:
                raise ProfileError(f"--slo {entry}: expected metric_statistic=time, such as ttft_p99=2s, or failed=1%")
            document["slo"][name.strip()] = limit.strip()


def _plan_of(options: argparse.Namespace) -> dict[str, Any]:
    """The keys of `[plan]` that the options set; raises `ProfileError`."""
    if options.search is not None:
        return {"search": options.search}
    if options.ladder is not None:
        loads = _parse_option("ladder", options.ladder)
        return {"ladder": loads, "by": "concurrency"}
    if options.ramp is None:
        return {}
    given = next((name for name in ("requests", "duration", "warmup") if getattr(options, name) is not None), None)
    if given is not None:
        raise ProfileError(f"--ramp {options.ramp} says how long it takes: leave out --{given}")
    try:
        first, last, over = options.ramp.split(":")
        start, end = int(first), int(last)
    except ValueError:
        raise ProfileError(f"--ramp {options.ramp}: expected streams, streams and a time, such as 1:64:60s") from None
    if start >= end:
        how = "stands still" if start == end else "goes down"
        raise ProfileError(f"--ramp {options.ramp}: {how}; give the lower load first, such as 1:64:60s")
    return {"ramp": {"start": start, "end": end, "over": over}, "by": "concurrency"}


def _set_cluster(document: dict[str, Any], options: argparse.Namespace) -> None:
    """Replace the profile's machines with those that the options name."""
    from loadgen.profile.schema import OWN_HOSTS_KEYS

    if options.hosts is not None:
        cluster = document.setdefault("cluster", {})
        cluster.pop("scheduler", None)
        cluster["hosts"] = options.hosts.split(",")
    if options.scheduler is not None:
        cluster = document.setdefault("cluster", {})
        for key in ("hosts", *OWN_HOSTS_KEYS):
            cluster.pop(key, None)
        cluster["scheduler"] = options.scheduler


def _parse_option(name: str, text: str) -> object:
    try:
        if name == "ladder" and text.isdecimal():
            return int(text)
        if name in ("concurrency", "ladder"):
            return [int(part) for part in text.split(",")]
        if name == "rate":
            return [float(part) for part in text.split(",")]
        if name in ("requests", "workers", "seed"):
            return int(text)
        if name in ("isl", "osl", "warmup") and text.isdigit():
            return int(text)
    except ValueError:
        listed = " or a list of them" if name in ("concurrency", "ladder", "rate") else ""
        raise ProfileError(f"--{name} {text}: expected a number{listed}") from None
    return text


def port_of(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text}: a port is a number from 0 to 65535")
    return int(text)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
