"""Recorded failures of vLLM 0.32.0, and lines as other versions, libraries and the kernel write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.server.process.guard_client import ServerExit
from loadgen.server.process.log import clean_line
from loadgen.server.vllm.causes import CAUSES
from loadgen.server.vllm.diagnosis import (
    MAX_EVIDENCE,
    MAX_EVIDENCE_CHARS,
    diagnose,
    is_oom_kill,
    kernel_kills,
    read_oom_kills,
)

LOGS = Path(__file__).with_name("logs")
FAILED = ServerExit(code=1)
KILLED = ServerExit(signal=9)
KERNEL = "Memory cgroup out of memory: Killed process 2811 (VLLM::EngineCor) total-vm:16420540kB, anon-rss:13951040kB"


def log(name: str) -> list[str]:
    return (LOGS / f"{name}.log").read_text().splitlines()[1:]


def rows(path: Path) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split("|") for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(("name", "cause", "title", "evidence", "remedy"), rows(LOGS / "fails.txt"))
def test_cause_of_recorded_failure(name: str, cause: str, title: str, evidence: str, remedy: str) -> None:
    served = name.startswith(("engine_", "worker_"))
    found = diagnose(
        log(f"fails_{name}"), ServerExit(code=0 if served else 1), phase="serving" if served else "starting"
    )
    assert found.cause == cause
    assert title in found.title
    assert found.evidence[0].startswith(evidence)
    assert remedy in found.remedy


@pytest.mark.parametrize("name", ["engine_killed", "worker_killed"])
def test_the_kernel_tells_whether_it_killed(name: str) -> None:
    lines = log(f"fails_{name}")
    by_kernel = diagnose([*lines, KERNEL], ServerExit(code=0), phase="serving")
    assert (by_kernel.cause, by_kernel.evidence[0]) == ("oom-killer", KERNEL)
    assert by_kernel.title.endswith("at the memory limit of its control group (a container, pod, job or unit)")
    not_by_kernel = diagnose(lines, ServerExit(code=0), phase="serving", oom_kills=0)
    assert "the kernel counted no OOM kill" in not_by_kernel.remedy


CORE = "(EngineCore_DP0 pid=1) ERROR 10-21 09:00:09 [core.py:700] "
PREFIXES = {
    "CORE ": CORE,
    "V0 ": "(VllmWorkerProcess pid=1252) ERROR 12-25 01:10:28 multiproc_worker_utils.py:229] ",
    "RANK ": "[rank0]: ",
}
"""As `lines.txt` abbreviates them."""


@pytest.mark.parametrize(("cause", "says", "line"), rows(Path(__file__).with_name("lines.txt")))
def test_cause_of_line(cause: str, says: str, line: str) -> None:
    for short, prefix in PREFIXES.items():
        line = prefix + line.removeprefix(short) if line.startswith(short) else line
    after = END.replace("{}", "{'EngineCore': 1}")
    found = diagnose([line, after], FAILED, phase="starting")
    assert found.cause == cause
    assert says in found.title


def test_list_without_keys_is_the_tokenizer_only_below_its_function() -> None:
    error = "AttributeError: 'list' object has no attribute 'keys'"
    place = '(APIServer pid=1)   File "/x/tokenization_utils_base.py", line 1190, in _set_model_specific_special_tokens'
    assert diagnose([place, error], FAILED, phase="starting").cause == "newer-tokenizer"
    assert diagnose([error], FAILED, phase="starting").cause == "unknown"


END = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
ADVISED = "ValueError: The model type 'gemma2' does not support float16. Reason: unstable. Please use bfloat16 instead."


@pytest.mark.parametrize("end", [[END], []], ids=["engine core", "one process"])
@pytest.mark.parametrize(
    ("error", "title", "remedy"),
    [
        (
            ADVISED,
            "the engine says: The model type 'gemma2' does not support float16",
            'as it says: "Please use bfloat16 instead."',
        ),
        (
            "RuntimeError: Cannot find module x. Try `pip install x`, or pass --no-x.",
            "the engine says: Cannot find module x",
            'as it says: "Try `pip install x`, or pass --no-x."',
        ),
    ],
)
def test_error_with_its_own_remedy_is_quoted(end: list[str], error: str, title: str, remedy: str) -> None:
    worker = "(Worker_TP1 pid=2) ERROR 10-21 09:00:08 [x.py:1] KeyError: 'x'"
    found = diagnose([worker, CORE + error, *end], FAILED, phase="starting")
    assert (found.cause, found.title, found.evidence, found.remedy) == ("engine-error", title, (error,), remedy)


def test_error_with_its_own_remedy_is_not_quoted_elsewhere() -> None:
    dead = CORE + "EngineDeadError: EngineCore encountered an issue."
    assert diagnose([CORE + ADVISED, dead], FAILED, phase="serving").cause == "engine-died"
    assert diagnose([CORE + ADVISED], ServerExit(signal=15), phase="starting").cause == "killed"
    routine = "WARNING 10-21 09:00:09 [x.py:1] " + ADVISED
    assert diagnose([routine, END], FAILED, phase="starting").cause != "engine-error"
    without = "ValueError: expected 3 values, not 4."
    found = diagnose([CORE + without, END], FAILED, phase="starting")
    assert (found.cause, found.evidence) == ("engine-died", (without,))
    assert "dmesg" not in found.remedy
    behind = "RuntimeError: Worker failed with error 'x', please check the stack trace above for the root cause"
    assert diagnose([CORE + behind, END], FAILED, phase="starting").cause != "engine-error"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 10-21 09:00:09 [x.py:1] Could not find nvcc; FlashInfer's sampler is not used",
        "WARNING 10-21 09:00:09 [x.py:1] Your Tesla T4 device doesn't support torch.bfloat16. Falling back to float16",
        "    5 | #include <Python.h>",
        "checking for Python.h... yes",
        "ValueError: no compiler pass named gcc",
    ],
)
def test_line_that_is_no_cause_of_death(line: str) -> None:
    assert diagnose([line], FAILED, phase="starting").cause == "unknown"


def test_every_cause_fills_its_title_and_remedy() -> None:
    for cause in CAUSES:
        values = dict.fromkeys([*re.compile(cause.pattern).groupindex, "who_sent"], "x")
        assert "{" not in cause.title.format_map(values) + cause.remedy.format_map(values)


def test_memory_under_load_has_another_remedy_than_at_the_start() -> None:
    lines = [
        CORE + "torch.OutOfMemoryError: CUDA out of memory.",
        CORE + "EngineDeadError: EngineCore encountered an issue.",
    ]
    starting, serving = (diagnose(lines, FAILED, phase=phase) for phase in ("starting", "serving"))
    assert starting.cause == serving.cause == "gpu-out-of-memory"
    assert (starting.title, starting.remedy) != (serving.title, serving.remedy)


def test_each_worker_says_it_but_the_evidence_is_short() -> None:
    lines = [
        f"(Worker_TP{rank} pid=1) ERROR 10-21 09:00:09 [x.py:1] torch.OutOfMemoryError: HIP out of memory. GPU {rank}"
        for rank in range(8)
    ]
    assert len(diagnose(lines, FAILED, phase="starting").evidence) == MAX_EVIDENCE
    same = [line.replace("GPU", "") for line in lines[:1]] * 8
    assert len(diagnose(same, FAILED, phase="starting").evidence) == 1


def test_routine_lines_prove_nothing() -> None:
    lines = [
        "INFO 10-21 09:00:09 logger.py:37] Received request: prompt: 'torch.OutOfMemoryError: CUDA out of memory'",
        "WARNING 10-21 09:00:09 [system_utils.py:255] OSError: No space left on device",
        "[W1121 10:21:01.128190313 utils.cpp:68] Warning: CUDA error: invalid device function",
        'INFO:     127.0.0.1:1 - "POST /v1/completions?CUDA out of memory HTTP/1.1" 200 OK',
        '    raise ValueError("No available memory for the cache blocks.")',
        "KeyError: 'rope_type'",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}",
    ]
    found = diagnose(lines, FAILED, phase="starting")
    assert (found.cause, found.evidence) == ("unknown", ("KeyError: 'rope_type'",))
    assert found.title == "the server ended with exit code 1 while it started; its log has no cause that vramp knows"


def test_an_engine_that_died_of_something_new_shows_it() -> None:
    lines = [CORE + "KeyError: 'x'", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."]
    found = diagnose(lines, FAILED, phase="serving")
    assert (found.cause, found.evidence) == ("engine-died", ("KeyError: 'x'",))


def test_engine_killed_during_start_without_an_exit_code() -> None:
    line = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    found = diagnose([line], FAILED, phase="starting")  # vLLM issue 45626
    assert (found.cause, found.title) == ("process-killed", "EngineCore was killed without a word: SIGKILL")
    several = line.replace("{}", "{'EngineCore_DP0': 0, 'EngineCore_DP1': -9}")
    assert "EngineCore_DP1, by SIGKILL" in diagnose([several], FAILED, phase="starting").title
    unknown = diagnose([CORE + "KeyError: 'x'", line], FAILED, phase="starting")
    assert (unknown.cause, unknown.evidence) == ("engine-died", ("KeyError: 'x'",))
    ended_by_vllm = line.replace("{}", "{'EngineCore_DP0': 1, 'EngineCore_DP1': -15}")
    assert diagnose([CORE + "KeyError: 'x'", ended_by_vllm], FAILED, phase="starting").cause == "unknown"


def test_a_switch_that_cannot_be_turned_off_is_named_as_in_the_profile() -> None:
    found = diagnose(["vllm: error: unrecognized arguments: --no-dtype"], ServerExit(code=2), phase="starting")
    assert found.title == "this vLLM has no flag --no-dtype"
    assert found.remedy.startswith("remove dtype = false (or no-dtype) from [server.args]")


def test_what_follows_a_misspelt_flag_is_kept_secret() -> None:
    lines = ["vllm: error: unrecognized arguments: --api-keys sk-secret --max-model-length 4"]
    found = diagnose(lines, ServerExit(code=2), phase="starting")
    assert "remove server.args.api-keys" in found.remedy
    assert found.evidence == ("vllm: error: unrecognized arguments: --api-keys *** --max-model-length 4",)


@pytest.mark.parametrize(
    ("exit", "oom_kills", "cause", "title"),
    [
        (KILLED, 0, "killed", "somebody killed the server (SIGKILL)"),
        (KILLED, None, "killed", "somebody, or the kernel's OOM killer, killed the server (SIGKILL)"),
        (KILLED, 2, "oom-killer", "the kernel's OOM killer ended the server: out of memory (RAM, not HBM)"),
        (ServerExit(code=137), 1, "oom-killer", "the kernel's OOM killer ended the server: out of memory (RAM"),
        (ServerExit(code=143), 0, "killed", "somebody killed the server (SIGTERM)"),
        (ServerExit(signal=15), None, "killed", "somebody killed the server (SIGTERM)"),
        (ServerExit(signal=11), None, "process-crashed", "the server crashed in native code (SIGSEGV)"),
        (ServerExit(signal=7), None, "process-crashed", "the server crashed in native code (SIGBUS)"),
        (ServerExit(signal=40), None, "killed", "somebody killed the server (signal 40)"),
        (ServerExit(code=3), 0, "unknown", "the server ended with exit code 3 while it served; its log has no"),
        (ServerExit(), None, "unknown", "the server lost its guard process and was killed while it served; its log"),
        (None, None, "unknown", "the server is in trouble while it served; its log has no cause"),
    ],
)
def test_an_end_without_a_word(exit: ServerExit | None, oom_kills: int | None, cause: str, title: str) -> None:
    found = diagnose(["a last word"], exit, phase="serving", oom_kills=oom_kills)
    assert found.cause == cause
    assert found.title.startswith(title)
    assert "a last word" in found.evidence


def test_a_kill_elsewhere_does_not_hide_what_the_log_proves() -> None:
    lines = [KERNEL, "vllm: error: unrecognized arguments: --x"]
    assert diagnose(lines, ServerExit(code=2), phase="starting", oom_kills=1).cause == "unknown-flag"
    assert diagnose([KERNEL, "KeyError: 'x'"], FAILED, phase="starting").cause == "unknown"
    assert diagnose([KERNEL, "plain words"], FAILED, phase="starting").cause == "oom-killer"


@given(
    lines=st.lists(
        st.one_of(st.text(), st.binary().map(clean_line), st.sampled_from(log("fails_no_ram")), st.text(min_size=900)),
        max_size=12,
    ),
    exit=st.one_of(
        st.none(), st.builds(ServerExit, code=st.integers(0, 255)), st.builds(ServerExit, signal=st.integers(1, 64))
    ),
    oom_kills=st.one_of(st.none(), st.integers(0, 3)),
)
def test_any_lines_give_a_short_and_harmless_diagnosis(
    lines: list[str], exit: ServerExit | None, oom_kills: int | None
) -> None:
    found = diagnose(lines, exit, phase="starting", oom_kills=oom_kills)
    assert len(found.evidence) <= MAX_EVIDENCE
    for text in (found.title, found.remedy, *found.evidence):
        assert text
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text)
    assert all(len(text) <= MAX_EVIDENCE_CHARS for text in found.evidence)


KILL = "Memory cgroup out of memory: Killed process 23793 (leaker) total-vm:2623712kB, anon-rss:506500kB"


def tree(folder: Path, **files: str) -> tuple[Path, Path]:
    """`proc__self__cgroup="..."` writes proc/self/cgroup; a second underscore in a row separates folders."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__"))
        path = path.with_name(path.name.replace("_dot_", "."))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "proc", folder / "cgroup"


def test_the_groups_own_counter_v2(tmp_path: Path) -> None:
    events = "low 0\nhigh 0\nmax 3\noom 3\noom_kill 2\noom_group_kill 0\n"
    where = tree(tmp_path, proc__self__cgroup="0::/user.slice/run\n", proc__vmstat="oom_kill 9\n")
    (tmp_path / "cgroup/user.slice/run").mkdir(parents=True)
    (tmp_path / "cgroup/user.slice/run/memory.events").write_text(events)
    assert read_oom_kills(*where) == 2
    assert read_oom_kills(*where, own_group=False) == 9


def test_in_a_container_the_groups_path_is_the_hosts(tmp_path: Path) -> None:
    where = tree(tmp_path, proc__self__cgroup="0::/../../docker/abc\n", cgroup__memory_dot_events="oom_kill 1\n")
    assert read_oom_kills(*where) == 1


def test_the_groups_counter_v1(tmp_path: Path) -> None:
    where = tree(
        tmp_path,
        proc__self__cgroup="5:devices:/\n4:cpu,memory:/box\n0::/\n",
        cgroup__memory__box__memory_dot_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
    )
    assert read_oom_kills(*where) == 5


def test_else_the_machines_counter_or_none(tmp_path: Path) -> None:
    where = tree(tmp_path, proc__self__cgroup="0::/\nnonsense\n", proc__vmstat="pgfault 1\noom_kill 7\n")
    assert read_oom_kills(*where) == 7
    assert read_oom_kills(tmp_path / "no", tmp_path / "no") is None


def test_this_machine_has_a_counter_or_not() -> None:
    kills = read_oom_kills()
    assert kills is None or kills >= 0


def test_the_kernels_words_since_a_moment(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(
        f"6,1,1000000,-;{KILL} early\n SUBSYSTEM=x\n".encode()
        + f"3,2,9000000,-;{KILL}\x1b[31m\n3,3,9000001,-;oom_reaper: reaped process 23793\nnonsense\n;\n".encode()
    )
    assert kernel_kills(5.0, log) == [KILL]
    assert kernel_kills(0.0, log) == [f"{KILL} early", KILL]


def test_a_kernel_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    assert kernel_kills(0.0, tmp_path / "none") == []
    assert kernel_kills(0.0, tmp_path) == []
    assert all(is_oom_kill(line) for line in kernel_kills(0.0))


@pytest.mark.parametrize(
    ("line", "kill"),
    [
        (KILL, True),
        ("Out of memory: Killed process 2811 (python3) total-vm:16420540kB", True),
        ("Out of memory (oom_kill_allocating_task): Killed process 1 (x)", True),
        ("torch.OutOfMemoryError: CUDA out of memory.", False),
        ("oom_reaper: reaped process 23793 (leaker)", False),
    ],
)
def test_what_is_a_kill(line: str, kill: bool) -> None:
    assert is_oom_kill(line) is kill
