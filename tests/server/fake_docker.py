"""A stand-in for `docker`: its container, like a real one, is no descendant of the client that asked for it.

The folder FAKE_DOCKER holds the pid of the container, which the test started, and each call's arguments. A habit is a
word in FAKE_HABITS: `stop-fails`, `rm-fails`, `rm-hangs`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["FAKE_DOCKER"])
HABITS = os.environ.get("FAKE_HABITS", "").split()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def main() -> None:
    with (FOLDER / "calls").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    print("docker says", sys.argv[1], flush=True)
    verb = sys.argv[1]
    if f"{verb}-fails" in HABITS:
        sys.exit(1)
    if f"{verb}-hangs" in HABITS:
        time.sleep(600)
    container = int((FOLDER / "container").read_text())
    if verb != "run" and runs(container):
        os.kill(container, signal.SIGINT if verb == "stop" else signal.SIGKILL)
    while verb == "run" and runs(container):
        time.sleep(0.01)


if __name__ == "__main__":
    main()
