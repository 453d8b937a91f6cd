"""What journal, snapshot and result have in common: how a server starts or dies, what a search found, where prompts
came from, which machines and CPUs send the load."""

from __future__ import annotations

from typing import Literal

import msgspec

from loadgen.format import counted, setting
from loadgen.schema.bounds import Whole
from loadgen.searches import SearchName

RunState = Literal["complete", "stopped", "server_died", "failed"]
LoadKind = Literal["concurrency", "rate", "sessions"]
SloVerdict = Literal["met", "missed", "unresolved"]


class Diagnosis(msgspec.Struct, frozen=True):
    """What ended a server."""

    cause: str  # stable, for scripts: `unknown-flag`, `kv-cache`; `unknown` if no known cause was found
    title: str
    evidence: tuple[str, ...]  # log lines, most significant first; short, without control sequences and credentials
    remedy: str


class SearchPoint(msgspec.Struct, frozen=True):
    """One probe of a search; None is unknown."""

    load: float  # the requested load
    held: float | None
    output_tokens_per_s: float | None
    error_percent: float | None  # the standard error of `output_tokens_per_s`
    verdict: SloVerdict
    """On the limits, with 95 % confidence; a search for the knee has none."""


class SearchResult(msgspec.Struct, frozen=True):
    """The outcome of a search."""

    kind: SearchName
    by: LoadKind
    found: float | None
    """`slo`: the highest load that met the limits; `knee`: the load with the most power, throughput over latency."""
    low: float | None
    high: float | None
    """`slo`: the highest load that surely met the limits and the lowest that surely missed them; `knee`: the 95 %
    confidence interval."""
    resolved: bool  # false: not found with 95 % confidence, or not within the bounds of the search
    why: str
    probes: Whole
    points: tuple[SearchPoint, ...] = ()  # every probe, in order

    @property
    def is_found(self) -> bool:
        """Whether the search has its answer, with 95 % confidence."""
        return self.found is not None and self.resolved

    @property
    def words(self) -> str:
        """What was found, between which bounds."""
        if self.found is None:
            return "nothing"
        bounds = "" if self.low is None or self.high is None else f" ({setting(self.low)} to {setting(self.high)})"
        found = setting(self.found)
        return f"{found} sessions{bounds}" if self.by == "sessions" else f"{self.by} {found}{bounds}"


class Milestone(msgspec.Struct, frozen=True):
    """One step of the server's start."""

    id: str
    label: str
    state: Literal["waiting", "running", "done"] = "waiting"
    progress: float | None = None  # 0 to 1 where the log says how far it is
    detail: str = ""
    started_s: float | None = None
    finished_s: float | None = None
    expected_s: float | None = None  # how long it took in the last start of the same kind
    elapsed_s: float | None = None  # since it began, while it runs


class DataFile(msgspec.Struct, frozen=True):
    """What a run's prompts or sessions are read or drawn from, as it was at the start of the run."""

    path: str
    sha256: str
    bytes: Whole
    form: str
    records: Whole
    left_out: Whole  # conversations or rows of the file that are not sent
    is_sample: bool  # whether it is the sample that comes with vramp
    note: str | None = None  # for a trace: what it is, how much of it is sent and how fast, why rows are left out

    @property
    def words(self) -> str:
        if self.form == "generated":
            return f"{self.path}: {self.note}, sha256 {self.sha256[:12]}"
        if self.is_sample:
            return f"vramp's own sample of {self.records} synthetic conversations"
        held = counted(self.records, "conversation" if self.form == "sharegpt" else "record")
        left_out = f" ({self.left_out:,} left out)" if self.left_out else ""
        return f"{self.path}: {self.note or f'{held}{left_out}'}, sha256 {self.sha256[:12]}"


class Placement(msgspec.Struct, frozen=True):
    """The CPUs on which the workers run, and why."""

    cpus: str
    pinned: bool  # the workers are restricted to these; otherwise these are all that vramp itself may use
    why: str
    avoided: str = ""  # the server's CPUs, and those of their SMT siblings that the workers do not use

    @property
    def words(self) -> str:
        if not self.pinned:
            return f"not pinned: {self.why}"
        return f"CPUs {self.cpus}, {self.why}{f' ({self.avoided} avoided)' if self.avoided else ''}"


class HostFacts(msgspec.Struct, frozen=True):
    """A host of the cluster, as it was found before the start."""

    name: str
    address: str  # by which it was reached
    hostname: str
    identity: str
    """Its boot id and network namespace: two names of one host have the same."""
    kernel: str
    cores: float  # that its workers may use
    open_files: Whole  # the hard limit
    ports: Whole  # local ports for connections to one server
    vramp: str
    python: str
    distributed: str
    definitions: str  # the version of what figures mean
