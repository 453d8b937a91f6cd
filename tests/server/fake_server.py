"""A stand-in for a server: an HTTP answer where readiness looks for one, and a process tree with bad habits.

Run as a script by the tests. A habit is a word in FAKE_HABITS: `deaf` ignores SIGTERM, `children` adds a child that
ignores SIGTERM, `escape` adds one that double-forks into a session of its own, `crash` ends with exit code 3 and a
traceback, `mute` never listens, `locked` wants a key. The pid of each process of the tree is appended to the file
FAKE_PIDS.
"""

import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HABITS = os.environ.get("FAKE_HABITS", "").split()


def note() -> None:
    with Path(os.environ["FAKE_PIDS"]).open("a") as file:
        file.write(f"{os.getpid()}\n")


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"data": [{"id": "fake", "max_model_len": 4096}]}'
        self.send_response(401 if "locked" in HABITS and self.path == "/v1/models" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        return


def linger() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note()
    while True:
        time.sleep(60)


def escape() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            linger()
        os._exit(0)
    os.wait()


def main() -> None:
    if sys.argv[1:] == ["linger"]:
        linger()
    note()
    print("INFO 10-21 09:00:00 [api_server.py:1] vLLM API server version 0.32.0", flush=True)
    if "deaf" in HABITS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "escape" in HABITS:
        escape()
    if "children" in HABITS:
        subprocess.Popen([sys.executable, __file__, "linger"])
    if "crash" in HABITS:
        print("ValueError: max_model_len (99999999) is too large", flush=True)
        sys.exit(3)
    if "mute" in HABITS:
        time.sleep(600)
    port = int(sys.argv[sys.argv.index("--port") + 1])
    print("INFO 10-21 09:00:01 [server.py:1] Application startup complete.", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), Answers).serve_forever()


if __name__ == "__main__":
    main()
