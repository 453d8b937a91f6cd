"""Why a server ended: the cause, the lines that prove it, and what to do.

Invariants: any lines are accepted; evidence is short, without control sequences and credentials; an unknown cause is
called unknown. Lines that the server logged as routine (INFO, WARNING) prove nothing, since they may quote prompts and
advice, and neither do lines of source code in a traceback.

Whether the kernel's OOM killer was at work shows in its counters, compared with those before, and in its log where
that may be read. Nothing here needs privileges; what cannot be read is None or empty, never an error.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal as signals
from collections.abc import Iterable, Sequence
from io import RawIOBase
from pathlib import Path

from loadgen.format import signal_name
from loadgen.masking import masked_command, masked_text
from loadgen.schema.shared import Diagnosis
from loadgen.server.process.guard_client import ServerExit
from loadgen.server.process.log import clean_line, is_routine, shortened, split_line, telling_lines
from loadgen.server.vllm.causes import CAUSES, Cause, Phase
from loadgen.system import text_in

_OOM_KILL = re.compile(r"[Oo]ut of memory(?: \([^)]*\))?: Kill(?:ed)? process \d+")
_OOM_COUNTER = re.compile(r"^oom_kill (\d{1,18})$", re.MULTILINE)

_MICROSECONDS = re.compile(rb"\d{1,18}")

MAX_EVIDENCE = 4
MAX_EVIDENCE_CHARS = 300
_MATCHED_CHARS = 600
_MAX_VALUE_CHARS = 160

_REFUSED = "unrecognized arguments: "
_SOURCE = re.compile(r'\s{4}|\s*File "|[\s^~]*$')
_EXCEPTION = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit)(?=:|$)")
_CONSEQUENCE = re.compile(
    r"[Ss]ee (?:root cause|stack trace)|EngineDeadError|Executor failed|cancelled|Cancelled|BrokenPipe|ConnectionReset"
    r"|^SystemExit|stack trace above"
)
_ADVISED = ("ValueError", "RuntimeError", "NotImplementedError", "AssertionError", "ImportError")
_ADVICE = re.compile(
    r"\b(?:please|you (?:can|could|may|must|should|need)|instead)\b|(?:^|\s|`)--[a-z]"
    r"|(?:^|[.;:,] |\bor |\bto fix\S* )(?:try|set|use|consider|increase|decrease|reduce|lower|raise|enable|disable"
    r"|install|upgrade|update|downgrade|make sure|ensure|specify|pass|provide|replace|switch)\b",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"(?<=[.!?;]) +")
_MAY_BE_OOM = {"process-killed", "engine-died", "host-out-of-memory"}
_LOOK = 'read the log from its first error on; VLLM_LOGGING_LEVEL = "DEBUG" in [server.env] makes it more detailed'
_CRASHES = (signals.SIGSEGV, signals.SIGABRT, signals.SIGBUS, signals.SIGILL, signals.SIGFPE)
_CRASH_REMEDY = "look at dmesg; check that driver, ROCm or CUDA, torch and vLLM belong together"
_SIGNAL_REMEDIES: dict[int, str] = {
    signals.SIGHUP: "a terminal or an ssh session was closed: start vramp in tmux or screen",
    signals.SIGINT: "somebody pressed Ctrl+C, or asked a container to stop",
    signals.SIGTERM: "find out who sent it: another operator (kill, pkill), a job scheduler at its time limit, "
    "Kubernetes or docker that ended the container, systemd that stopped a unit (journalctl)",
    signals.SIGBUS: "shared memory or the disk behind a mapped file is full or failing; see server.docker.ipc",
    signals.SIGILL: "this CPU lacks instructions for which vLLM was built: use another build",
}
_KILLERS = (
    "another operator (kill -9, pkill), a job scheduler at a limit, Kubernetes that evicts or restarts a pod (kubectl "
    "describe pod), systemd-oomd or earlyoom (journalctl)"
)
# vLLM's messages about an EngineCore that is gone, and an EngineCore's about a signal that it caught (0.32, 0.33).
_ENGINE_GONE = re.compile(r"engine core exited unexpectedly|core proc\(s\): \{\}")
_CAUGHT = re.compile(r"\[shutdown\] EngineCore: trigger received signal=(SIG[A-Z]+)")


def diagnose(lines: Sequence[str], exit: ServerExit | None, *, phase: Phase, oom_kills: int | None = None) -> Diagnosis:
    """The cause of an end, from the log's lines (optionally with those of `kernel_kills`) and the exit.

    `exit` is None while the server still runs; `oom_kills` counts the kernel's kills since the start, None if unknown.
    """
    clean = [_masked(clean_line(line.encode("utf-8", "replace"))) for line in lines]
    messages = _messages(clean)
    found = _first(messages, clean, phase)
    signal = _signal(exit) if exit is not None else None
    unexplained = found[0].id in _MAY_BE_OOM if found is not None else not _exceptions(messages)
    # The counter alone may be about another process: the server's end must also look like an OOM kill.
    if (signal == signals.SIGKILL or unexplained) and (oom_kills or any(map(is_oom_kill, clean))):
        return _oom_kill(clean, oom_kills)
    silent = found is not None and found[0].id == "engine-died" and not _exceptions(messages)
    if silent and any(map(_ENGINE_GONE.search, clean)):
        return _engine_killed(clean, oom_kills)
    # While it serves, the last error may be about a request.
    if phase == "starting" and signal is None and (found is None or found[0].id == "engine-died"):
        quoted = _own_words(messages)
        if quoted is not None:
            return quoted
    if found is not None:
        return _known(*found, messages, oom_kills)
    if signal is not None:
        return _signalled(signal, clean, oom_kills)
    when = "while it started" if phase == "starting" else "while it served"
    evidence = _exceptions(messages) or telling_lines(clean, limit=MAX_EVIDENCE)
    title = f"the server {exit or 'is in trouble'} {when}; its log has no cause that vramp knows"
    return Diagnosis("unknown", title, _shown(evidence), _LOOK)


def _masked(line: str) -> str:
    said, refused, words = line.partition(_REFUSED)  # a misspelt --api-key, for one
    return masked_text(said + refused + " ".join(masked_command(words.split(" "))) if refused else line)


def _messages(lines: Iterable[str]) -> list[str]:
    """The messages that may prove something, without prefixes and repetitions, in order."""
    parts = (split_line(line) for line in lines)
    reported = (text[:_MATCHED_CHARS] for level, text in parts if not is_routine(level))
    return list(dict.fromkeys(text for text in reported if _SOURCE.match(text) is None))


def _first(messages: Sequence[str], lines: Sequence[str], phase: Phase) -> tuple[Cause, re.Match[str]] | None:
    for cause in CAUSES:
        applies = cause.phase in (None, phase) and any(re.search(cause.context, line) for line in lines)
        for message in messages if applies else ():
            if (match := re.search(cause.pattern, message)) is not None:
                return cause, match
    return None


def _known(cause: Cause, match: re.Match[str], messages: Sequence[str], oom_kills: int | None) -> Diagnosis:
    values = {name: (value or "?").strip()[:_MAX_VALUE_CHARS] for name, value in match.groupdict().items()}
    if "signal" in values:
        number = int(values["signal"])
        values |= {"signal": signal_name(number), "who_sent": _who_sent(number, oom_kills)}
    remedy = cause.remedy.format_map(values)
    evidence: list[str] = []
    for message, following in zip(messages, [*messages[1:], ""], strict=True):
        if re.search(cause.pattern, message) is not None:
            # A line that is indented by two continues the one before.
            evidence += [message, following] if following.startswith("  ") else [message]

    if cause.id == "engine-died" and (errors := _exceptions(messages)):
        evidence, remedy = errors, _LOOK  # whatever killed it explains more than its death
    return Diagnosis(cause.id, cause.title.format_map(values), _shown(evidence), remedy)


def _own_words(messages: Sequence[str]) -> Diagnosis | None:
    """The last error that says what to do about it, quoted; None if none does."""
    for error in reversed(_exceptions(messages)):
        kind, _, words = error.partition(": ")
        sentences = _SENTENCES.split(words.strip())
        advice = [number for number, sentence in enumerate(sentences) if _ADVICE.search(sentence)]
        if kind.rpartition(".")[2] in _ADVISED and advice:
            title = shortened(sentences[0].rstrip("."), _MAX_VALUE_CHARS)
            remedy = shortened(" ".join(sentences[advice[0] :]), MAX_EVIDENCE_CHARS)
            return Diagnosis("engine-error", f"the engine says: {title}", _shown([error]), f'as it says: "{remedy}"')
    return None


def _engine_killed(lines: Sequence[str], oom_kills: int | None) -> Diagnosis:
    """The engine is gone without an error of its own, except possibly a signal that it caught."""
    caught = next(filter(None, map(_CAUGHT.search, lines)), None)
    name = caught[1] if caught is not None else "SIGKILL"
    number = getattr(signals, name, signals.SIGKILL)
    title = f"EngineCore was killed ({name})" if caught is not None else "EngineCore was killed without a word: SIGKILL"
    evidence = [line for line in lines if _CAUGHT.search(line) or _ENGINE_GONE.search(line)]
    return Diagnosis("process-killed", title, _shown(evidence), _who_sent(number, oom_kills))


def _who_sent(number: int, oom_kills: int | None) -> str:
    """Who could have sent a signal, and where that is logged."""
    if number != signals.SIGKILL:
        return _SIGNAL_REMEDIES.get(number, _CRASH_REMEDY)
    if oom_kills == 0:  # the counters were read
        return f"find out who sent it, since the kernel counted no OOM kill: {_KILLERS}"
    return f"find out who sent it: the kernel's OOM killer (`sudo dmesg | grep -i oom`), {_KILLERS}"


def _exceptions(messages: Iterable[str]) -> list[str]:
    """The exceptions' own lines, without those that only report an earlier failure."""
    return [message for message in messages if _EXCEPTION.match(message) and not _CONSEQUENCE.search(message)]


def _oom_kill(lines: Sequence[str], oom_kills: int | None) -> Diagnosis:
    kernel = [line for line in lines if is_oom_kill(line)]
    counted = [f"the kernel's count of OOM kills rose by {oom_kills}"] if oom_kills else []
    group = any("emory cgroup" in line for line in kernel)
    limit = ", at the memory limit of its control group (a container, pod, job or unit)" if group else ""
    return Diagnosis(
        "oom-killer",
        f"the kernel's OOM killer ended the server: out of memory (RAM, not HBM){limit}",
        _shown([*kernel, *counted, *telling_lines(lines, limit=1)]),
        "free memory, raise the container's limit, or lower what the server keeps in RAM (server.args.cpu-offload-gb, "
        "VLLM_CPU_KVCACHE_SPACE in [server.env])",
    )


def _signal(exit: ServerExit) -> int | None:
    """The signal that ended the server, directly or inside a container or shell, which exit with 128 plus it."""
    if exit.signal is not None:
        return exit.signal
    if exit.code is not None and 128 < exit.code <= 128 + signals.SIGRTMAX:
        return exit.code - 128
    return None


def _signalled(number: int, lines: Sequence[str], oom_kills: int | None) -> Diagnosis:
    name = signal_name(number)
    crash = number in _CRASHES
    title = f"the server crashed in native code ({name})" if crash else f"somebody killed the server ({name})"
    if number == signals.SIGKILL and oom_kills is None:
        title = f"somebody, or the kernel's OOM killer, killed the server ({name})"
    return Diagnosis(
        "process-crashed" if crash else "killed",
        title,
        _shown(telling_lines(lines, limit=MAX_EVIDENCE)),
        _who_sent(number, oom_kills),
    )


def _shown(evidence: Iterable[str]) -> tuple[str, ...]:
    texts = dict.fromkeys(split_line(line)[1].strip() for line in evidence)
    return tuple(shortened(text, MAX_EVIDENCE_CHARS) for text in texts if text)[:MAX_EVIDENCE]


def is_oom_kill(line: str) -> bool:
    return _OOM_KILL.search(line) is not None


def read_oom_kills(
    proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup"), *, own_group: bool = True
) -> int | None:
    """How many processes of this process's control group the OOM killer has killed; None if unknown.

    The whole machine's count is used where the group has no counter (as outside of containers with cgroup v2), and for
    a server in another group, such as a container's.
    """
    for path in [*(_counters(proc, cgroup_root) if own_group else ()), proc / "vmstat"]:
        match = _OOM_COUNTER.search(text_in(path))
        if match is not None:
            return int(match[1])
    return None


def kernel_kills(since_s: float, kmsg: Path = Path("/dev/kmsg")) -> list[str]:
    """The kernel log's messages about OOM kills since `since_s` (CLOCK_MONOTONIC); empty if it may not be read."""
    with contextlib.suppress(OSError):
        return [text for at_s, text in kernel_messages(kmsg) if at_s >= since_s and is_oom_kill(text)]
    return []


def kernel_messages(kmsg: Path = Path("/dev/kmsg")) -> list[tuple[float, str]]:
    """The messages of the kernel's log with their times (CLOCK_MONOTONIC); raises `OSError` if it may not be read.

    A message without a time has one before all others.
    """
    found: list[tuple[float, str]] = []
    with open(kmsg, "rb", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as log:
        for record in _kernel_records(log):
            head, _, message = record.partition(b";")  # of `6,1234,5678000,-;message`: microseconds since boot
            fields = head.split(b",")
            timed = len(fields) > 2 and _MICROSECONDS.fullmatch(fields[2])
            found.append((int(fields[2]) / 1e6 if timed else -math.inf, clean_line(message)))
    return found


def _counters(proc: Path, root: Path) -> list[Path]:
    """Where the counter may be: in the group's own folder, or in the root, which inside a container is the group's."""
    found: list[Path] = []
    for line in text_in(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        group = group.strip().lstrip("/")
        if "memory" in controllers.split(","):
            found += [root / "memory" / group / "memory.oom_control", root / "memory" / "memory.oom_control"]
        elif controllers == "":
            found += [root / group / "memory.events", root / "memory.events"]
    return found


def _kernel_records(log: RawIOBase) -> list[bytes]:
    """One record per read, until there are none or they may not be read."""
    data: list[bytes] = []
    with contextlib.suppress(OSError):
        for _ in range(100_000):
            with contextlib.suppress(BrokenPipeError):  # the kernel overwrote that record; continue with the next
                record = log.read(8192)
                if not record:
                    break
                data.append(record)
    return b"".join(data).splitlines()
