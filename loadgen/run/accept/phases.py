"""The phases of an acceptance, a function and a row each, in their order.

A phase looks at what is done already and does the rest, so that it can be continued at any moment; how it ended is its
`PhaseOutcome`, None if it was interrupted. A server that fails twice in a phase ends that phase, and those after it
that need a server are left out.

Phase output asks questions with one right answer under load: an engine may be wrong in a stable way, idle and loaded.
Each answer is a line of its own, so that those given before an interruption count, and only the others are asked again.
"""

from __future__ import annotations

import asyncio
import platform
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from loadgen.criteria import EXACT_MATCH, PhaseName
from loadgen.errors import ProfileError, ServerError
from loadgen.masking import masked
from loadgen.places import write_whole
from loadgen.plan.from_profile import stages_of
from loadgen.profile.load import PlanSettings, StageSettings
from loadgen.profile.schema import Profile
from loadgen.report.html.certificate import write_certificate
from loadgen.run.accept.acceptance import Acceptance, Companion
from loadgen.run.operations import Abort
from loadgen.run.run import Run
from loadgen.schema.accept_view import AcceptView
from loadgen.schema.certificate import (
    AcceptBegan,
    AcceptResumed,
    BoxIdentity,
    BoxSeen,
    Certificate,
    Counted,
    FactFound,
    GpuIdentity,
    Judged,
    PhaseBegan,
    PhaseEnded,
    ProbesRun,
)
from loadgen.schema.samples import Examination, GpuExam, ProbeResult
from loadgen.server.gpus.processes import described
from loadgen.server.preflight.check import check_profile
from loadgen.server.vllm.installation import installed_version, python_of
from loadgen.store.acceptance import certificate_of
from loadgen.store.growing import writing
from loadgen.telemetry.examine import Pace, examine
from loadgen.telemetry.probes import PROBES, run_probes
from loadgen.until import until

BOX_EVIDENCE = "box.json"
PROBE_OUTPUT = "probes"
PACE = Pace()
MAX_FAILURES = 2  # of a server, in one phase
_FIRST_REQUESTS = 2
_LOOK_S = 1.0
_JUDGE_S = 2.0  # after new lines
_JUDGE_RUN_S = 10.0  # while only the run that goes on has something new
MAX_OUTPUT_S = 3600.0
AT_ONCE = 4  # questions; few, so that the load stays what it is
_MAX_ANSWER_TOKENS = 512
_ANSWER_TIMEOUT_S = 300.0
_PAUSE_S = 1.0
_MIN_CANARIES = 10  # under load, though all questions were answered before
_MIN_BURN_IN_SHARE = 0.01  # less of it is not worth another start


class PhaseOutcome(NamedTuple):
    """How a phase ended."""

    state: Literal["done", "skipped", "failed"]
    reason: str = ""


DONE = PhaseOutcome("done")


class Phase(NamedTuple):
    """A phase: whether there is anything left to do, and how it is done."""

    name: PhaseName
    left: Callable[[Acceptance], bool]
    carry_out: Callable[[Acceptance], Awaitable[PhaseOutcome | None]]
    needs_server: bool = True


async def carry_out(acceptance: Acceptance) -> None:
    """Go through the phases that were ordered and have something left; raises `VrampError` if that is impossible."""
    failed = ""
    for phase in PHASES:
        if acceptance.stopping.is_set():
            return
        if phase.name not in acceptance.phases:
            continue
        before = _last_end(acceptance, phase.name)
        if before is not None and before.state == "failed" and not acceptance.settings.repeats:
            failed = failed or phase.name
        if failed == phase.name or (_is_over(acceptance, phase.name) and not phase.left(acceptance)):
            continue
        acceptance.phase = phase.name
        acceptance.write(PhaseBegan(unix_s=time.time(), phase=phase.name))
        if failed and phase.needs_server:
            outcome: PhaseOutcome | None = PhaseOutcome("skipped", f"the server had failed in phase {failed}")
        else:
            outcome = await phase.carry_out(acceptance)
        if outcome is not None:
            acceptance.write(
                PhaseEnded(unix_s=time.time(), phase=phase.name, state=outcome.state, reason=outcome.reason)
            )
            failed = failed or (phase.name if outcome.state == "failed" else "")
        acceptance.phase = None


def _is_over(acceptance: Acceptance, phase: PhaseName) -> bool:
    """Whether it came to its end the last time that it began; a crash may come before that is written down."""
    lines = (line for line in reversed(acceptance.lines) if isinstance(line, PhaseBegan | PhaseEnded))
    return isinstance(next((line for line in lines if line.phase == phase), None), PhaseEnded)


def _last_end(acceptance: Acceptance, phase: PhaseName) -> PhaseEnded | None:
    ends = (line for line in reversed(acceptance.lines) if isinstance(line, PhaseEnded) and line.phase == phase)
    return next(ends, None)


def _steady(profile: Profile, duration_s: float) -> Profile:
    """The profile with one stage of this length: the load of the burn-in."""
    accept, load = profile.accept, profile.load
    listed = [stage for stage in profile.stages if stage.concurrency or stage.rate]
    stages = listed or [StageSettings(rate=rate) for rate in load.rate]
    stages = stages or [StageSettings(concurrency=each) for each in load.concurrency]
    highest = max(stages, key=lambda stage: (stage.concurrency or 0, stage.rate or 0.0))
    if accept is not None and accept.burn_in_concurrency is not None:
        highest = highest.model_copy(update={"concurrency": accept.burn_in_concurrency, "rate": None})
    shape = dict(zip(("isl", "osl"), load.shapes[0], strict=True)) if load.shapes else {}
    plan = PlanSettings(saturation="note", goodput=profile.plan.goodput)
    stage = highest.model_copy(update={"requests": None, "duration": duration_s, "label": None})
    changed = load.model_copy(update={"shapes": [], "rate": [], "rate_points": [], "passes": 1, **shape})
    return profile.model_copy(update={"load": changed, "stages": [stage], "plan": plan})


async def _runs(
    acceptance: Acceptance,
    phase: PhaseName,
    left: Callable[[Acceptance], bool],
    profile: Callable[[], Profile],
    meanwhile: Companion | None = None,
) -> PhaseOutcome | None:
    """Runs of a phase until nothing is left of it, or the server has failed too often."""
    failures: list[str] = []
    while left(acceptance) and not acceptance.stopping.is_set():
        made = await acceptance.run(phase, profile(), meanwhile)
        if made.state in ("failed", "server_died"):
            failures.append(made.reason)
        if len(failures) == MAX_FAILURES:
            return PhaseOutcome("failed", f"the server failed {MAX_FAILURES} times, at last: {made.reason}")
    return None if acceptance.stopping.is_set() and left(acceptance) else DONE


# The box.


def _box_left(acceptance: Acceptance) -> bool:
    """A box is looked at again after each boot."""
    boot, looked_at = "", ""
    for line in acceptance.lines:
        if isinstance(line, AcceptBegan | AcceptResumed):
            boot = line.boot_id
        elif isinstance(line, BoxSeen):
            looked_at = boot
    return looked_at != boot


async def _box(acceptance: Acceptance) -> PhaseOutcome | None:
    """Write down what doctor and preflight see, without secrets; raises `ResultError`."""
    profile = acceptance.settings.profile
    found = await _examined(acceptance)
    if found is None:
        return None
    findings = await check_profile(profile, stages_of(profile))
    path, seen = acceptance.folder / BOX_EVIDENCE, {"examination": found, "findings": findings}
    with writing(path, "evidence"):
        write_whole(path, msgspec.json.format(msgspec.json.encode(masked(seen)), indent=1) + b"\n")
    acceptance.write(BoxSeen(unix_s=time.time(), box=identity_of(found, profile)))
    for line in _facts(found, _vllm_here(profile)):
        acceptance.write(line)
    blocking = [finding for finding in findings if finding.severity == "blocks"]
    first = f"{blocking[0].id}: {blocking[0].seen}" if blocking else ""
    acceptance.write(
        Counted(unix_s=time.time(), phase="box", figure="blocking_findings", count=len(blocking), text=first)
    )
    return DONE


async def _examined(acceptance: Acceptance) -> Examination | None:
    """What doctor finds; None if it was interrupted."""
    found: list[Examination] = []

    async def look() -> None:
        found.append(await look_at_box(acceptance.settings.profile))

    await until(acceptance.stopping, look())
    return found[0] if found else None


async def look_at_box(profile: Profile) -> Examination:
    """What doctor finds, of the GPUs by what measures them in a run."""
    mode = profile.telemetry.mode
    with tempfile.TemporaryDirectory(prefix="vramp-accept-") as folder:
        found, _ = await examine("auto" if mode == "off" else mode, folder=Path(folder), pace=PACE, described=described)
    return found


def _gpus(found: Examination) -> list[GpuExam]:
    """Each GPU once, as the first backend that works sees it."""
    return [
        exam
        for first in {each.vendor: each for each in reversed(found.tried) if each.works}.values()
        for exam in first.gpus
    ]


def _vllm_here(profile: Profile) -> str | None:
    """The version of the vLLM that vramp would start here; None where it starts another engine, or a container."""
    python = python_of(profile.server.command) if profile.server.engine == "vllm" else None
    return installed_version(python) if python is not None else None


def identity_of(found: Examination, profile: Profile) -> BoxIdentity:
    """What tells this box from others."""
    versions = {name: version for name, version in found.versions.items() if version is not None}
    return BoxIdentity(
        host=platform.node(),
        gpus=tuple(
            GpuIdentity(exam.gpu.index, exam.gpu.name, exam.gpu.uuid, exam.gpu.bdf, exam.gpu.firmware or {})
            for exam in _gpus(found)
        ),
        kernel=versions.get("kernel"),
        driver=_driver(found),
        vllm_version=_vllm_here(profile),
        versions=versions,
    )


def _driver(found: Examination) -> str | None:
    """That of the first vendor that has one."""
    return next((version for name, version in found.versions.items() if name.endswith(" driver") and version), None)


def _facts(found: Examination, vllm: str | None) -> Iterator[FactFound]:
    """What criteria of phase box can be about."""
    gpus = _gpus(found)

    def fact(figure: str, value: float | str | None, subject: str = "", reason: str = "") -> FactFound:
        return FactFound(
            unix_s=time.time(),
            phase="box",
            figure=figure,
            subject=subject,
            value=value,
            reason=reason if value is None else "",
        )

    yield fact("driver", _driver(found), reason="no driver of GPUs is loaded")
    yield fact("kernel", found.versions["kernel"])
    yield fact("vllm", vllm, reason="vramp starts no vLLM from an installation here")
    unmeasured = bool(found.tried) and not gpus  # there is a sign of GPUs, but nothing reads them
    yield fact("gpus", None if unmeasured else float(len(gpus)), reason="no GPU could be measured")
    for exam in gpus:
        subject = f"gpu {exam.gpu.index}"
        yield fact("gpu_name", exam.gpu.name, subject)
        for component, version in (exam.gpu.firmware or {}).items():
            yield fact(f"firmware.{component}", version, subject)
    for name, value in found.host.settings.items():
        yield fact(f"host.{name}", value)


# The silicon.


def _silicon_left(acceptance: Acceptance) -> bool:
    end = _last_end(acceptance, "silicon")
    return end is None or end.state != "done"


async def _silicon(acceptance: Acceptance) -> PhaseOutcome | None:
    """Run the vendors' tools that are installed, on GPUs that nobody uses."""
    found = await _examined(acceptance)
    if found is None:
        return None
    if not any(each.works for each in found.tried):
        return PhaseOutcome("skipped", found.nothing or "no GPU could be measured; vramp doctor says why")
    results: tuple[ProbeResult, ...] = ()

    async def run_tools() -> None:
        nonlocal results
        output = acceptance.folder / PROBE_OUTPUT
        output.mkdir(mode=0o700, exist_ok=True)
        results = await run_probes(PROBES, found, folder=output, line=lambda text: None)

    try:
        await until(acceptance.stopping, run_tools())
    except ProfileError as error:  # the GPUs are in use
        return PhaseOutcome("skipped", str(error).removeprefix("--probe: "))
    if acceptance.stopping.is_set():
        return None
    if all(result.state == "absent" for result in results):
        missing = "; ".join(f"{result.name}: {result.why}" for result in results)
        return PhaseOutcome("skipped", missing or "no tool is known for these GPUs")
    acceptance.write(ProbesRun(unix_s=time.time(), results=results))
    return DONE


# Those that need a server.


def _starts_left(acceptance: Acceptance) -> bool:
    return acceptance.complete("start") < acceptance.accept.starts


async def _start(acceptance: Acceptance) -> PhaseOutcome | None:
    """Start the server several times and send it a first request; at first with an empty compile cache."""
    if not acceptance.starts_server:
        return PhaseOutcome("skipped", "vramp did not start this server")
    with tempfile.TemporaryDirectory(dir=acceptance.folder.absolute(), prefix="cold-cache-") as cache:
        return await _runs(acceptance, "start", _starts_left, lambda: _first_requests(acceptance, cache))


def _first_requests(acceptance: Acceptance, cache: str) -> Profile:
    """The profile with a few requests; on the first start, a vLLM that vramp runs has nothing compiled in `cache`."""
    profile, server = acceptance.settings.profile, acceptance.settings.profile.server
    if server.engine == "vllm" and not acceptance.complete("start"):
        server = server.model_copy(update={"env": server.env | {"VLLM_CACHE_ROOT": cache}})
    changes: dict[str, Any] = {
        "server": server,
        "load": profile.load.model_copy(update={"shapes": [], "rate": [], "rate_points": [], "passes": 1}),
        "stages": [StageSettings(concurrency=1, requests=_FIRST_REQUESTS, warmup=0)],
        "plan": PlanSettings(),
        "canary": profile.canary.model_copy(update={"enabled": False}),
    }
    return profile.model_copy(update=changes)


def unanswered(acceptance: Acceptance) -> list[int]:
    """The numbers of the questions that have no answer yet, from 0."""
    answered = {line.subject for line in acceptance.lines if isinstance(line, Counted) and line.figure == EXACT_MATCH}
    return [number for number in range(len(acceptance.questions)) if _subject(number) not in answered]


async def ask_questions(acceptance: Acceptance, run: Run) -> None:
    """Ask what has no answer yet, a few at once; returns when all is asked and canaries had their time, too.

    What fails is asked again in another run; if that is this one, no answer is a wrong answer.
    """
    questions, numbers = acceptance.questions, iter(unanswered(acceptance))
    failures: dict[int, str] = {}

    async def ask_one_by_one() -> None:
        for number in numbers:
            question = questions[number]
            try:
                answer = await run.ask(question.prompt, max_tokens=_MAX_ANSWER_TOKENS, timeout_s=_ANSWER_TIMEOUT_S)
            except ServerError as error:
                failures[number] = str(error)
                await asyncio.sleep(_PAUSE_S)  # the server may just have died
            else:
                right = question.is_answered_by(answer)
                _note(acceptance, number, right=right, text="" if right else f"{question.prompt} {answer}")

    canaries_s = _MIN_CANARIES * acceptance.settings.profile.canary.interval_s
    await asyncio.gather(asyncio.sleep(canaries_s), *(ask_one_by_one() for _ in range(AT_ONCE)))
    if acceptance.complete("output"):
        for number, why in failures.items():
            _note(acceptance, number, right=False, text=f"no answer: {why}")


def _note(acceptance: Acceptance, number: int, *, right: bool, text: str) -> None:
    acceptance.write(
        Counted(
            unix_s=time.time(),
            phase="output",
            figure=EXACT_MATCH,
            subject=_subject(number),
            count=int(right),
            trials=1,
            text=text,
        )
    )


def _subject(number: int) -> str:
    return f"question {number + 1}"


def _answers_left(acceptance: Acceptance) -> bool:
    return bool(unanswered(acceptance)) or not acceptance.complete("output")


async def _output(acceptance: Acceptance) -> PhaseOutcome | None:
    """Send canaries and ask questions under load."""

    def profile() -> Profile:
        loaded = _steady(acceptance.settings.profile, MAX_OUTPUT_S)
        return loaded.model_copy(update={"canary": loaded.canary.model_copy(update={"enabled": True})})

    return await _runs(acceptance, "output", _answers_left, profile, partial(ask_questions, acceptance))


def _performance_left(acceptance: Acceptance) -> bool:
    wanted = acceptance.accept.starts if acceptance.starts_server else 1
    return acceptance.complete("performance") < wanted


async def _performance(acceptance: Acceptance) -> PhaseOutcome | None:
    """Measure the profile's loads on several starts; on a server that vramp only attaches to, once."""
    return await _runs(acceptance, "performance", _performance_left, lambda: acceptance.settings.profile)


def _burn_in_left_s(acceptance: Acceptance) -> float:
    done_s = sum(made.load_s for made in acceptance.made if made.phase == "burn-in")
    return acceptance.accept.burn_in - done_s


def _burn_in_left(acceptance: Acceptance) -> bool:
    return _burn_in_left_s(acceptance) >= _MIN_BURN_IN_SHARE * acceptance.accept.burn_in


async def _burn_in(acceptance: Acceptance) -> PhaseOutcome | None:
    """Send a steady load for hours; what was cut off is continued."""
    return await _runs(
        acceptance,
        "burn-in",
        _burn_in_left,
        lambda: _steady(acceptance.settings.profile, _burn_in_left_s(acceptance)),
    )


PHASES = (
    Phase("box", _box_left, _box, needs_server=False),
    Phase("silicon", _silicon_left, _silicon, needs_server=False),
    Phase("start", _starts_left, _start),
    Phase("output", _answers_left, _output),
    Phase("performance", _performance_left, _performance),
    Phase("burn-in", _burn_in_left, _burn_in),
)


def left_s(acceptance: Acceptance) -> float:
    """How long the rest takes at least: starts and loads, as far as their length is known."""
    known = [made.start_s for made in acceptance.made if made.start_s is not None]
    start_s = sum(known) / len(known) if known else 0.0
    starts = acceptance.accept.starts if acceptance.starts_server else 0
    plan_s = sum(stage.duration_s or 0.0 for stage in stages_of(acceptance.settings.profile))
    burn_in_s = max(0.0, _burn_in_left_s(acceptance))
    runs: dict[PhaseName, tuple[int, float]] = {
        "start": (starts - acceptance.complete("start"), 0.0),
        "output": (1 - acceptance.complete("output"), 0.0),
        "performance": (max(1, starts) - acceptance.complete("performance"), plan_s),
        "burn-in": (int(burn_in_s > 0), burn_in_s),
    }
    ordered = (runs[name] for name in acceptance.phases if name in runs)
    return sum((max(0, count) * (start_s + load_s) for count, load_s in ordered), start=0.0)


async def views(acceptance: Acceptance) -> AsyncIterator[AcceptView]:
    """Carry an acceptance out, and yield its state whenever it has changed; the last has the certificate as written.

    Raises `VrampError` if it cannot go on; what was measured until then is judged, too.
    """
    work = asyncio.create_task(carry_out(acceptance))
    certificate, judged_lines, judged_at_s = None, 0, 0.0
    try:
        while not work.done():
            acceptance.changed.clear()
            since_s = time.monotonic() - judged_at_s
            if certificate is None or since_s >= (_JUDGE_S if len(acceptance.lines) != judged_lines else _JUDGE_RUN_S):
                judged_lines, judged_at_s = len(acceptance.lines), time.monotonic()
                certificate = await asyncio.to_thread(certificate_of, acceptance.folder, acceptance.live)
            yield _view(acceptance, certificate)
            news = asyncio.create_task(acceptance.changed.wait())
            await asyncio.wait({work, news}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
    finally:
        if not work.done():
            acceptance.apply(Abort())
        await asyncio.wait({work})  # no server may be left behind
        work.exception()  # retrieved, or asyncio prints its traceback if the certificate cannot be written
        acceptance.write(Judged(unix_s=time.time()))
        certificate = await asyncio.to_thread(write_certificate, acceptance.folder)
        acceptance.close()
    work.result()
    yield _view(acceptance, certificate, over=True)


def _view(acceptance: Acceptance, certificate: Certificate, *, over: bool = False) -> AcceptView:
    return AcceptView(
        certificate,
        acceptance.phase,
        acceptance.run_folder.name if acceptance.run_folder is not None else "",
        acceptance.snapshot,
        left_s(acceptance),
        ending=acceptance.stopping.is_set(),
        over=over,
    )
