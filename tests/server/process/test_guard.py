"""The guard over real processes: whatever happens to whom, nothing of the tree is left."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from tests.server.fakes import FakeDocker, FakeServer, fake_docker, wait_until

ROOT = Path(__file__).parents[3]
PARENT = """
import json, subprocess, sys
words = [sys.executable, "-m", "loadgen.server.process.guard"]
guard = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
guard.stdin.write(sys.stdin.readline().encode())
guard.stdin.flush()
guard.wait()
"""


class Guard:
    """A guard and what it says."""

    def __init__(self, fake: FakeServer, stderr: IO[bytes] | None = None) -> None:
        self._fake = fake
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadgen.server.process.guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=ROOT,
            start_new_session=True,
        )

    def order(self, argv: list[str], habits: str = "", stop_timeout_s: float = 0.3) -> None:
        self.say(order(self._fake, argv, habits, stop_timeout_s))

    def contain(self, docker: FakeDocker, stop_timeout_s: float = 0.3) -> psutil.Process:
        """Start a container; returns the client, once its server is there."""
        id_file = docker.folder / "8000-x.cid"
        words = ["run", "--rm", "--name", "vramp-8000-x", "--label", "vramp.server=x", "--cidfile", str(id_file)]
        contained = {
            "argv": [str(docker.executable), *words],
            "container": {"program": str(docker.executable), "id_file": str(id_file)},
            "record": record_of(self._fake),
        }
        self.say(order(self._fake, [], "", stop_timeout_s) | contained)
        client = psutil.Process(self.hear("started")["pid"])
        assert docker.container.is_running()
        return client

    def serve(self, habits: str = "", *, processes: int = 1, stop_timeout_s: float = 0.3) -> list[psutil.Process]:
        self.order(self._fake.argv("--port", "0"), habits, stop_timeout_s)
        assert self.hear("started")["pid"] > 0
        return self._fake.processes(processes)

    def say(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def hear(self, event: str) -> dict[str, Any]:
        """The next message of this kind; others in between are passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message["event"] == event:
                return message
        raise AssertionError(f"the guard ended without {event!r}")


def order(fake: FakeServer, argv: list[str], habits: str = "", stop_timeout_s: float = 0.3) -> dict[str, Any]:
    return {
        "argv": argv,
        "env": fake.env(habits),
        "cwd": None,
        "log_path": str(fake.log),
        "stop_timeout_s": stop_timeout_s,
    }


@contextmanager
def running(fake: FakeServer, stderr: IO[bytes] | None = None) -> Iterator[Guard]:
    guard = Guard(fake, stderr)
    with guard.process:
        yield guard
        guard.close()
        assert guard.process.wait(timeout=20) in (0, -signal.SIGKILL)


@pytest.fixture
def guard(fake: FakeServer) -> Iterator[Guard]:
    with running(fake) as one:
        yield one


def test_a_server_that_obeys_is_not_killed(fake: FakeServer, guard: Guard) -> None:
    tree = guard.serve(stop_timeout_s=20)
    waited_for = {"pid": tree[0].pid, "name": tree[0].name()}
    guard.say({"do": "stop"})
    assert guard.hear("stopping")["waiting_for"] == [waited_for]
    assert guard.hear("exited") == {"event": "exited", "code": None, "signal": signal.SIGTERM}
    assert guard.hear("stopped") == {"event": "stopped", "killed": [], "left": [], "problem": ""}
    fake.assert_gone(tree)


@pytest.mark.parametrize(("habits", "processes"), [("deaf", 1), ("children escape", 3), ("deaf children escape", 3)])
def test_what_ignores_sigterm_is_killed(fake: FakeServer, guard: Guard, habits: str, processes: int) -> None:
    tree = guard.serve(habits, processes=processes)
    guard.say({"do": "stop"})
    report = guard.hear("stopped")
    deaf = tree if "deaf" in habits else tree[1:]
    assert {entry["pid"] for entry in report["killed"]} >= {process.pid for process in deaf}
    assert report["left"] == []
    fake.assert_gone(tree)


def test_a_killed_main_process_is_reported_at_once_and_its_orphans_end(fake: FakeServer, guard: Guard) -> None:
    tree = guard.serve("children escape", processes=3)
    tree[0].kill()
    assert guard.hear("exited")["signal"] == signal.SIGKILL
    assert not all(process.status() == psutil.STATUS_ZOMBIE for process in tree[1:]), "reported after the orphans ended"
    assert {entry["pid"] for entry in guard.hear("stopped")["killed"]} == {process.pid for process in tree[1:]}
    fake.assert_gone(tree)


@pytest.mark.parametrize("code", [0, 7])
def test_exit_codes_are_passed_on(guard: Guard, code: int) -> None:
    guard.order([sys.executable, "-S", "-c", f"import os; os._exit({code})"])
    assert guard.hear("exited") == {"event": "exited", "code": code, "signal": None}
    assert guard.hear("stopped")["killed"] == []


def test_a_program_that_cannot_be_executed_is_a_failure(fake: FakeServer, guard: Guard) -> None:
    guard.order([str(fake.folder / "nothing")])
    assert "nothing" in guard.hear("failed")["error"]


def test_without_an_order_it_just_ends(guard: Guard) -> None:
    guard.close()
    assert guard.process.wait(timeout=20) == 0


def test_interrupts_do_not_end_it_and_sigterm_stops_the_server(fake: FakeServer, guard: Guard) -> None:
    tree = guard.serve()
    guard.process.send_signal(signal.SIGINT)
    guard.process.send_signal(signal.SIGHUP)
    guard.process.send_signal(signal.SIGTERM)
    assert guard.hear("stopped")["left"] == []
    fake.assert_gone(tree)


def test_the_server_inherits_no_ignored_or_blocked_signal(fake: FakeServer, guard: Guard) -> None:
    check = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) != signal.SIG_DFL"
    check += " or bool(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    guard.order([sys.executable, "-S", "-c", check])
    assert guard.hear("exited")["code"] == 0


def test_output_is_appended_to_the_log(fake: FakeServer, guard: Guard) -> None:
    fake.log.write_text("before\n")
    guard.order([sys.executable, "-S", "-c", "import os; os.write(1, b'out\\n'); os.write(2, b'err\\n')"])
    guard.hear("stopped")
    assert fake.log.read_text() == "before\nout\nerr\n"


def test_a_closed_stdin_shortens_a_stop_under_way(fake: FakeServer, guard: Guard) -> None:
    tree = guard.serve("deaf", stop_timeout_s=3600)
    guard.say({"do": "stop"})
    guard.hear("stopping")
    guard.close()
    assert guard.hear("stopped")["left"] == []
    fake.assert_gone(tree)


def test_a_parent_killed_with_sigkill_takes_the_tree_with_it(fake: FakeServer) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, cwd=ROOT)
    with parent:
        assert parent.stdin is not None
        message = order(fake, fake.argv("--port", "0"), "deaf children escape")
        parent.stdin.write(json.dumps(message).encode() + b"\n")
        parent.stdin.flush()
        tree = fake.processes(3)
        guards = psutil.Process(parent.pid).children()
        parent.kill()
    fake.assert_gone([*tree, *guards])


def record_of(fake: FakeServer) -> dict[str, Any]:
    return {"path": str(fake.folder / "8000.json"), "facts": {"port": 8000}}


def test_after_leave_the_end_of_stdin_ends_nothing_and_sigterm_does(fake: FakeServer, guard: Guard) -> None:
    guard.say(order(fake, fake.argv("--port", "0"), stop_timeout_s=20) | {"record": record_of(fake)})
    tree = fake.processes(1)
    guard.say({"do": "leave"})
    guard.hear("left")
    guard.close()
    record = json.loads(Path(record_of(fake)["path"]).read_text())
    assert (record["left"], record["server"]["pid"]) == (True, tree[0].pid)
    guard.process.send_signal(signal.SIGHUP)
    assert guard.process.poll() is None
    guard.process.send_signal(signal.SIGTERM)
    assert guard.hear("exited")["signal"] == signal.SIGTERM
    assert guard.hear("stopped")["killed"] == []
    fake.assert_gone(tree)


def test_leave_and_the_end_of_stdin_in_one_breath(fake: FakeServer, guard: Guard) -> None:
    tree = guard.serve()
    guard.say({"do": "leave"})
    guard.close()
    guard.hear("left")
    assert tree[0].is_running()
    guard.process.send_signal(signal.SIGTERM)
    guard.hear("stopped")
    fake.assert_gone(tree)


def test_the_record_is_there_while_the_server_is(fake: FakeServer, guard: Guard) -> None:
    path = Path(record_of(fake)["path"])
    guard.say(order(fake, fake.argv("--port", "0"), "children") | {"record": record_of(fake)})
    tree = fake.processes(2)
    wait_until(lambda: len(json.loads(path.read_text())["tree"]) == 2)
    record = json.loads(path.read_text())
    assert record["server"]["pid"] == tree[0].pid
    assert (record["port"], record["left"]) == (8000, False)
    assert path.stat().st_mode & 0o777 == 0o600
    guard.say({"do": "stop"})
    guard.hear("stopped")
    assert not path.exists()


@pytest.mark.parametrize("log", ["/dev/null", "/dev/full"])
def test_a_record_that_cannot_be_written_is_no_reason_not_to_serve(fake: FakeServer, log: str) -> None:
    record = {"path": str(fake.folder / "nothing" / "8000.json"), "facts": {}}
    with Path(log).open("wb") as stderr, running(fake, stderr) as guard:
        guard.say(order(fake, fake.argv("--port", "0")) | {"record": record})
        fake.processes(1)
        guard.hear("tree")
        guard.say({"do": "stop"})
        assert guard.hear("stopped")["left"] == []


def test_a_container_is_stopped_by_its_id(fake: FakeServer, guard: Guard) -> None:
    with fake_docker(fake.folder) as docker:
        client = guard.contain(docker, stop_timeout_s=20)
        one = (fake.folder / "8000-x.cid").read_text()
        guard.say({"do": "stop"})
        assert guard.hear("exited")["code"] == 0
        assert guard.hear("stopped") == {"event": "stopped", "killed": [], "left": [], "problem": ""}
        fake.assert_gone([client, docker.container])
        assert docker.calls()[1:] == [["stop", "-t", "20", one], ["rm", "--force", one]]
        assert fake.log.read_text() == "docker says run\ndocker says stop\n"
        assert sorted(path.name for path in fake.folder.glob("8000*")) == []


@pytest.mark.parametrize("gone", [False, True])
def test_a_container_that_does_not_stop_is_killed(fake: FakeServer, guard: Guard, gone: bool) -> None:
    with fake_docker(fake.folder, "deaf") as docker:
        client = guard.contain(docker)
        if gone:
            guard.close()
        else:
            guard.say({"do": "stop"})
        report = guard.hear("stopped")
        assert (report["left"], report["problem"]) == ([], "")
        fake.assert_gone([client, docker.container])
        assert docker.verbs() == ["run", "stop", "rm"]


def test_a_container_does_not_outlive_its_client(fake: FakeServer, guard: Guard) -> None:
    with fake_docker(fake.folder) as docker:
        client = guard.contain(docker)
        client.kill()
        assert guard.hear("exited")["signal"] == signal.SIGKILL
        assert guard.hear("stopped")["problem"] == ""
        fake.assert_gone([client, docker.container])


def test_a_container_of_the_same_name_is_left_alone(fake: FakeServer, guard: Guard) -> None:
    with fake_docker(fake.folder) as docker:
        theirs = docker.run("vramp-8000-x")
        id_file = docker.folder / "8000-x.cid"
        words = ["run", "--rm", "--name", "vramp-8000-x", "--label", "vramp.server=x", "--cidfile", str(id_file)]
        container = {"program": str(docker.executable), "id_file": str(id_file)}
        guard.say(order(fake, [str(docker.executable), *words]) | {"container": container})
        assert guard.hear("exited")["code"] == 125
        assert guard.hear("stopped")["problem"] == ""
        assert theirs.is_running()
        assert docker.verbs() == ["run", "run"]
        assert "already in use" in fake.log.read_text()


def test_a_container_that_cannot_be_stopped_takes_its_client_along(fake: FakeServer, guard: Guard) -> None:
    with fake_docker(fake.folder, "stop-fails") as docker:
        guard.contain(docker, stop_timeout_s=3600)
        guard.say({"do": "stop"})
        assert guard.hear("exited")["signal"] == signal.SIGTERM
        guard.hear("stopped")
        fake.assert_gone([docker.container])


def test_a_client_that_has_no_container_yet_gets_the_signal(fake: FakeServer, guard: Guard) -> None:
    with fake_docker(fake.folder, "run-hangs") as docker:
        container = {"program": str(docker.executable), "id_file": str(docker.folder / "none")}
        guard.say(order(fake, [str(docker.executable), "run"], stop_timeout_s=3600) | {"container": container})
        wait_until(lambda: docker.verbs() == ["run"])
        guard.say({"do": "stop"})
        assert guard.hear("exited")["signal"] == signal.SIGTERM
        assert guard.hear("stopped")["problem"] == ""
        assert docker.verbs() == ["run"]


@pytest.mark.parametrize(
    ("habit", "how"), [("rm-fails", "ended with exit code 1"), ("rm-hangs", "did not end in time")]
)
def test_a_container_that_could_not_be_removed_is_reported_and_stays_recorded(
    fake: FakeServer, guard: Guard, habit: str, how: str
) -> None:
    with fake_docker(fake.folder, habit) as docker:
        guard.contain(docker)
        guard.close()
        report = guard.hear("stopped")
        assert report["problem"] == f"the container could not be removed: rm {how}"
        assert report["left"] == []
        assert Path(record_of(fake)["path"]).exists()
        assert (fake.folder / "8000-x.cid").exists()


def test_without_its_program_the_client_gets_the_signal(fake: FakeServer, guard: Guard) -> None:
    with fake_docker(fake.folder) as docker:
        client = guard.contain(docker, stop_timeout_s=3600)
        docker.executable.unlink()
        guard.say({"do": "stop"})
        assert guard.hear("exited")["signal"] == signal.SIGTERM
        assert "cannot run" in guard.hear("stopped")["problem"]
        fake.assert_gone([client])


@pytest.mark.parametrize(("guard", "said"), [("os.getppid()", "runs\n"), ("1", "")])
def test_a_server_does_not_begin_once_its_guard_is_gone(guard: str, said: str) -> None:
    check = (
        f"import os\nfrom loadgen.server.process.guard import _end_with_the_guard as end\nend({guard})\nprint('runs')"
    )
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (said, 0 if said else 1)
