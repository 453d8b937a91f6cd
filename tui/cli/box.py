"""Commands about this box: `vramp check` and `vramp doctor` only read; `vramp stop` ends servers left running there.

A server that a vramp uses now is stopped only with its port and `--force`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from msgspec.structs import replace

from loadgen.errors import ProfileError, ResultError, ServerError, TelemetryError, reported_as
from loadgen.masking import masked
from loadgen.places import state_folder
from loadgen.plan.from_profile import stages_of
from loadgen.plan.stage import Stage
from loadgen.profile.schema import Profile
from loadgen.report.examination import doctor_text, findings_json, findings_text
from loadgen.report.tabular import json_text
from loadgen.run.evidence import Scene, gpu_table, take_evidence
from loadgen.schema.finding import Finding, Skipped, not_checked
from loadgen.server.gpus.processes import described
from loadgen.server.preflight.check import NEEDS_BOX, check_profile
from loadgen.server.preflight.outdated import outdated
from loadgen.server.process.guard_client import stop_server
from loadgen.server.process.ports import holder_of
from loadgen.server.process.records import ServerRecord, find_servers, remains
from loadgen.server.vllm.client import ServerClient
from loadgen.telemetry.backends import has_sign
from loadgen.telemetry.capture import write_capture
from loadgen.telemetry.examine import DUMP_PACE, Pace, capture_header, examine
from loadgen.telemetry.gpus_now import read_gpus
from loadgen.telemetry.probes import PROBES, chosen_probes, run_probes
from loadgen.vendors import VENDORS, LocalBackend
from tui.cli.options import INTERRUPTED, add_profile_options, parser_of, print_status, print_text, profile_of

BLOCKED = 3  # the server could not be started: the exit code that a run would have


def check(options: argparse.Namespace) -> int:
    """Print the findings; return `BLOCKED` if one of them blocks."""
    profile, _ = profile_of(options)
    plan = stages_of(profile)
    findings = asyncio.run(check_profile(profile, plan, recorded=options.installation, box=options.box))
    if profile.cluster.remote:
        here = options.installation is None and options.box is None
        findings += _check_hosts(profile, plan) if here else not_checked([Skipped("hosts", NEEDS_BOX)])
    print_text(findings_json(findings) if options.json else findings_text(findings))
    return BLOCKED if any(finding.severity == "blocks" for finding in findings) else 0


def check_parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vramp check",
        "What stands in the way of a profile on this box. It changes nothing, but runs what the profile names: its "
        "server's Python, and docker.",
        f"exit codes: 0 nothing blocks; 2 usage or profile; {BLOCKED} something blocks",
    )
    add_profile_options(parser)
    group = parser.add_argument_group("check")
    group.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    group.add_argument(
        "--installation", metavar="0.32.0", help="check against what is recorded of this vLLM version, not this box"
    )
    group.add_argument(
        "--box",
        metavar="[COUNTx]PART",
        help="check for these GPUs, such as 4xl40s or mi300x, not for this box (default COUNT: the usual board of 8; "
        "for cards, as many as the profile needs)",
    )
    return parser


def _check_hosts(profile: Profile, plan: Sequence[Stage]) -> list[Finding]:
    try:
        from loadgen.cluster.check import check_hosts
    except ModuleNotFoundError as error:
        from loadgen.run.load_hosts import no_cluster_extra

        raise no_cluster_extra(error) from None
    return asyncio.run(check_hosts(profile, plan))


def doctor(options: argparse.Namespace) -> int:
    """Print what was found; 1 if there are GPUs, or `--telemetry` names some, that nothing measures."""
    if options.evidence is not None:
        return _evidence(options.evidence)
    dump: Path | None = options.dump
    if dump is not None:  # checked before the measurement, which takes ten seconds
        if dump.is_dir():
            raise ProfileError(f"--dump {dump}: is a folder; --dump takes the name of a file")
        if not os.access(dump if dump.exists() else dump.absolute().parent, os.W_OK):
            raise ProfileError(
                f"--dump {dump}: cannot be written there; name a file in a folder that exists and is yours"
            )

    pace = Pace() if dump is None else DUMP_PACE
    try:
        # From here on, an interrupt has to end the children and remove this folder.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with tempfile.TemporaryDirectory(prefix="vramp-doctor-") as folder:
            found, trials = asyncio.run(examine(options.telemetry, folder=Path(folder), pace=pace, described=described))
        if options.probe is not None:
            # The tools' lines go to stderr; what they printed stays in a folder of this run.
            probing = run_probes(chosen_probes(options.probe), found, folder=_kept_folder("probes"), line=print_status)
            found = replace(found, probes=asyncio.run(probing))
    except KeyboardInterrupt:
        return INTERRUPTED
    found = masked(replace(found, outdated=tuple(outdated(found.versions))))
    print_text(json_text(found) if options.json else doctor_text(found))
    if dump is not None:
        header = capture_header(found, os.environ, datetime.now(UTC).isoformat(timespec="seconds"))
        write_capture(dump, header, trials)
        print_status(f"capture: {dump}")
    failed = any(result.state == "fail" for result in found.probes)
    return TelemetryError.exit_code if found.unmeasured or failed else 0


def _evidence(url: str) -> int:
    """Take the evidence of a server, or of those that vramp started here; prints the page's path."""
    if url and not url.startswith(("http://", "https://")):
        raise ProfileError(f"--evidence {url}: is no URL; write it as http://127.0.0.1:8000")
    servers = [] if url else find_servers(_container_programs())[0]
    if not url and not servers:
        raise ServerError("no server that vramp started runs here; name one: vramp doctor --evidence URL")
    folder = _kept_folder("evidence")
    with reported_as(str(folder)):
        page = asyncio.run(_take_evidence([url] if url else [record.url for record in servers], servers, folder))
    print_text(str(page))
    return 0


async def _take_evidence(urls: Sequence[str], servers: Sequence[ServerRecord], folder: Path) -> Path:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(ServerClient(url)) for url in urls]
        scene = Scene(
            "taken by vramp doctor",
            lines=(),
            metrics={client.base_url: client.metrics_text for client in clients},
            pids=[record.server.pid for record in servers if record.container is None],
            logs=[Path(record.log_path) for record in servers],
            gpus=_gpu_table,
            containers=[record.container.top_command for record in servers if record.container is not None],
        )
        return await take_evidence(scene, folder)


async def _gpu_table() -> str:
    """What the GPUs of this box do; raises `TelemetryError` if there are none, or none can be read."""
    tables, why = list[str](), TelemetryError("there is no sign of a GPU here")
    for vendor in filter(has_sign, VENDORS):
        try:
            tables.append(gpu_table(described(one) for one in (await read_gpus(vendor)).samples.values()))
        except TelemetryError as error:
            why = error
    if not tables:
        raise why
    return "\n".join(tables)


def _container_programs() -> list[str]:
    return [path for name in ("docker", "podman") if (path := shutil.which(name)) is not None]


def _kept_folder(name: str) -> Path:
    """A folder for what is found now; raises `ResultError`."""
    try:
        folder = state_folder(name) / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ResultError(f"{error.filename}: {error.strerror}; XDG_STATE_HOME names another place") from error
    return folder


def doctor_parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vramp doctor",
        "What this box and this installation can measure, and why not. It reads, and changes nothing.",
        "exit codes: 0 GPUs are measured, or there are none; 1 nothing measures those of a vendor, or a probe failed; "
        "2 usage",
    )
    backends = ("auto", *get_args(LocalBackend))
    parser.add_argument("--telemetry", choices=backends, default="auto", help="try only this backend (default: auto)")
    parser.add_argument("--json", action="store_true", help="everything, of each GPU, as one JSON object")
    parser.add_argument(
        "--probe",
        metavar="NAME[,NAME...]",
        help="also run the vendors' own tools that are installed, for minutes, on GPUs that nobody uses: all, or of "
        + ", ".join(probe.name for probe in PROBES),
    )
    parser.add_argument(
        "--evidence",
        nargs="?",
        const="",
        metavar="URL",
        help="instead, write down all that can be seen of the servers that vramp started here, or of the one at URL, "
        "and print the path of its page",
    )
    parser.add_argument(
        "--dump", metavar="FILE", type=Path, help="measure for 10 s and write a capture, for --replay-telemetry"
    )
    return parser


def stop(options: argparse.Namespace) -> int:
    """Stop one server or all; return 0 if nothing of them is left."""
    try:
        servers, doubts = find_servers(_container_programs())
    except ServerError as error:
        if not options.list:
            raise
        servers, doubts = [], [str(error)]
    for doubt in doubts:
        print_status(doubt)
    if options.list:
        for record in servers:
            print_text(_line(record))
        return 0

    code = 0
    for record in _chosen(servers, options):
        print_status(f"stopping {_line(record)}")
        report = asyncio.run(stop_server(record, timeout_s=options.timeout))
        print_status(report.sentence)
        if not report.clean:
            code = ServerError.exit_code
    return code


def stop_parser() -> argparse.ArgumentParser:
    parser = parser_of(
        "vramp stop",
        "End a server that vramp left running, or what is left of one whose vramp was killed together with its guard. "
        "Servers of others are never touched, and one that a vramp drives only with --force.",
        "exit codes: 0 nothing of it is left; 2 usage; 3 there is no such server, or something of it is left",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("port", nargs="?", type=int, metavar="PORT", help="not needed if there is only one")
    which.add_argument("--all", action="store_true", help="stop every one of them")
    which.add_argument("--list", action="store_true", help="show them and stop none")
    parser.add_argument("--force", action="store_true", help="stop the one on PORT even if a vramp uses it")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="kill it after this time (60)")
    return parser


def _chosen(servers: list[ServerRecord], options: argparse.Namespace) -> list[ServerRecord]:
    if options.port is not None:
        there = [record for record in servers if record.port == options.port]
        free = [record for record in there if options.force or not _use(record)]
        if there and not free:
            raise ServerError(f"the server on port {options.port} is {_use(there[0])}; --force stops it all the same")
        if not there:
            others = ", ".join(str(record.port) for record in servers) or "none"
            raise ServerError(f"no server that vramp started listens on port {options.port}; running ones: {others}")
        return free
    used = [record for record in servers if _use(record)]
    chosen = [record for record in servers if record not in used]
    if not options.all and len(chosen) > 1:
        listed = "\n".join(f"  {_line(record)}" for record in servers)
        raise ProfileError(f"several servers are running; name a port, or use --all:\n{listed}")
    for record in used:
        print_status(f"not touched: {_line(record)}")
    if not chosen:
        print_status("no server that vramp left is running")
    return chosen


def _use(record: ServerRecord) -> str:
    """Which vramp uses it now, in words; empty if none."""
    if record.orphaned:
        return ""
    driver, owner = holder_of("drives", "localhost", record.port), holder_of("runs", "localhost", record.port)
    if driver:
        return f"driven by {driver}"
    return f"run by {owner}" if owner else ""


def _line(record: ServerRecord) -> str:
    minutes = max(0.0, time.time() - record.started_unix_s) / 60
    used = "in use by a vramp" if _use(record) else "left running"
    kind = f"left behind by a vramp that was killed: {remains(record)}" if record.orphaned else used
    return f"port {record.port}  {record.profile or '-'}  {record.model or '-'}  up {minutes:.0f} min  {kind}"
