"""A stand-in for `docker` and for its daemon, which alone knows the containers: names, ids, labels, processes.

`fake_docker.py FOLDER daemon` listens in FOLDER until it is killed; its containers, like real ones, are no descendants
of the client that asked for them. `fake_docker.py FOLDER WORDS...` is the client. Each call's words are appended to
FOLDER/calls, and a habit is a word in FOLDER/habits: `stop-fails`, `run-hangs`, `rm-lies` (it does nothing, and says
nothing) and so on, `goes-when-told` (what rm says, the container is gone), `late` (an answer takes a while), `deaf`
(containers do not mind SIGINT).
"""

import contextlib
import itertools
import json
import secrets
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

FOLDER = Path(sys.argv[1])
SOCKET = FOLDER / "docker.sock"
CONTAINER = "import signal, sys, time; signal.signal(signal.SIGINT, {}); print(flush=True); time.sleep(600)"


def habits() -> list[str]:
    path = FOLDER / "habits"
    return path.read_text().split() if path.exists() else []


# The daemon: one line of JSON asks, one answers.


class Daemon:
    def __init__(self) -> None:
        self.containers: dict[str, dict[str, str]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(SOCKET))
            listener.listen()
            print("listening", flush=True)
            while True:
                connection, _ = listener.accept()
                # A client may be killed while it asks.
                with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rw") as stream:
                    words = json.loads(stream.readline())
                    if "late" in habits():
                        time.sleep(0.3)
                    self.bury()
                    stream.write(json.dumps(getattr(self, words[0])(*words[1:])) + "\n")

    def bury(self) -> None:
        """What has ended and was started with --rm is gone."""
        for one, process in list(self.processes.items()):
            if process.poll() is not None:
                self.forget(one)

    def forget(self, one: str) -> None:
        self.containers.pop(one, None)
        process = self.processes.pop(one, None)
        if process is not None and process.stdout is not None:
            process.stdout.close()

    def create(self, name: str, label: str) -> dict[str, str]:
        for one, facts in self.containers.items():
            if facts["name"] == name:
                return {"error": f'Conflict. The container name "/{name}" is already in use by container "{one}".'}
        one = secrets.token_hex(32)
        self.containers[one] = {"name": name, "label": label}
        return {"id": one}

    def start(self, one: str) -> dict[str, str]:
        body = CONTAINER.format("signal.SIG_IGN" if "deaf" in habits() else "signal.SIG_DFL")
        process = subprocess.Popen([sys.executable, "-S", "-c", body], stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None
        process.stdout.readline()
        self.processes[one] = process
        with (FOLDER / "containers").open("a") as file:
            file.write(f"{process.pid}\n")
        return {"pid": str(process.pid)}

    def ids(self, kind: str, value: str) -> dict[str, list[str]]:
        if kind == "id":
            return {"ids": [one for one in self.containers if one.startswith(value)]}
        if kind == "name":
            return {"ids": [one for one, facts in self.containers.items() if value in facts["name"]]}
        key, _, wanted = value.partition("=")
        labels = {one: facts["label"] for one, facts in self.containers.items()}
        return {"ids": [one for one, has in labels.items() if has == f"{key}={wanted}" or (not wanted and has)]}

    def label(self, one: str) -> dict[str, str]:
        return {"label": self.containers[one]["label"].partition("=")[2]} if one in self.containers else {}

    def name(self, name: str) -> dict[str, str]:
        return next(({"id": one} for one, facts in self.containers.items() if facts["name"] == name), {})

    def signal(self, one: str, number: int) -> dict[str, str]:
        if one in self.processes:
            self.processes[one].send_signal(number)
        elif number == signal.SIGKILL:
            self.forget(one)
        return {}


# The client.


def ask(*words: object) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(SOCKET))
        except OSError:
            fail("Cannot connect to the Docker daemon. Is the docker daemon running?", 1)
        with connection.makefile("rw") as stream:
            stream.write(json.dumps(words) + "\n")
            stream.flush()
            return dict(json.loads(stream.readline()))


def fail(words: str, code: int) -> NoReturn:
    print(f"docker: {words}", file=sys.stderr)
    sys.exit(code)


def run(words: list[str]) -> None:
    given = dict(itertools.pairwise(words))
    id_file = Path(given["--cidfile"])
    if id_file.exists():
        fail(f"container ID file found, make sure the other container isn't running or delete {id_file}", 125)
    answer = ask("create", given["--name"], given["--label"])
    if "error" in answer:
        fail(f"Error response from daemon: {answer['error']}", 125)
    id_file.write_text(answer["id"])
    ask("start", answer["id"])
    while ask("ids", "id", answer["id"])["ids"]:
        time.sleep(0.02)


def listed(words: list[str]) -> None:
    filters = [word.split("=", 2)[1:] for word in words if word.startswith("--filter=")]
    found = [ask("ids", kind, value)["ids"] for kind, value in filters]
    print(*(one for one in found[0] if all(one in others for others in found)), sep="\n")


def end(verb: str, one: str) -> None:
    found = ask("ids", "id", one)["ids"] or [*ask("name", one).values()]
    if not found and verb == "stop":
        fail(f"Error response from daemon: No such container: {one}", 1)
    for each in found:
        ask("signal", each, signal.SIGINT if verb == "stop" else signal.SIGKILL)
    while verb == "rm" and any(ask("ids", "id", each)["ids"] for each in found):
        time.sleep(0.01)


def main() -> None:
    words = sys.argv[2:]
    verb = words[0]
    if verb == "daemon":
        Daemon().serve()
    with (FOLDER / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    if verb in ("run", "stop", "rm"):
        print("docker says", verb, flush=True)
    if verb == "rm" and "goes-when-told" in habits():
        end(verb, words[-1])
    if f"{verb}-fails" in habits():
        fail("it does not want to", 1)
    if f"{verb}-lies" in habits():
        return
    if f"{verb}-hangs" in habits():
        time.sleep(600)
    if verb == "run":
        run(words)
    elif verb == "ps":
        listed(words)
    elif verb == "inspect":
        print(*(ask("label", one).get("label", "") for one in words[3:]), sep="\n")
    elif verb in ("stop", "rm"):
        end(verb, words[-1])


if __name__ == "__main__":
    main()
