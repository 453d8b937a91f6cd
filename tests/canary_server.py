"""A stand-in for `vllm serve` that gives away what it was sent, in every form that a log has, and then simulates one.

Run as a script: `canary_server.py serve MODEL --port N ...`. With GIVE_UP in its environment it dies of it.
"""

import json
import os
import shlex
import sys

own = {name: value for name, value in os.environ.items() if "canary" in value}
for text in (*own.values(), *(f"{name}={value}" for name, value in own.items()), *sys.argv):
    print(f"INFO 11-22 09:00:00 [utils.py:261] {text}", flush=True)
    print(f"the value is >{text}<", file=sys.stderr, flush=True)
print(f"INFO 11-22 09:00:00 [utils.py:261] non-default args: {own} {sys.argv}", flush=True)
print(f"INFO 11-22 09:00:00 [utils.py:261] {json.dumps(own)} {shlex.join(sys.argv)}", flush=True)
if "GIVE_UP" in os.environ:
    raise RuntimeError(f"cannot go on: {own} {sys.argv}")
given = [sys.argv[sys.argv.index(flag) + 1] for flag in ("--host", "--port", "--api-key")]
words = [word for flag, value in zip(("--host", "--port", "--api-key"), given, strict=True) for word in (flag, value)]
simulator = [sys.executable, "-m", "loadgen.simulator", sys.argv[2], "--preset", "fast", "--fault", "echo:every=3"]
os.execv(sys.executable, [*simulator, *words])
