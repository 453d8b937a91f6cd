"""Each function of amdsmi's interface may fail in any way: it costs what it would have given, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

from tests.telemetry.amdsmi_stub.probe import environment
from tests.telemetry.amdsmi_stub.scenarios import MI210


def test_any_function_may_fail(rocm: Path, tmp_path: Path) -> None:
    (tmp_path / "scenario").write_text(MI210)
    argv = [sys.executable, "-m", "tests.telemetry.amdsmi_stub.walk"]
    env = environment(rocm, tmp_path / "scenario")
    walked = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in walked.stdout.splitlines()]
    assert len({one["function"] for one in found}) >= 15
    for one in found:
        if one["function"] == "amdsmi_get_processor_handles":  # without it there is no GPU to measure
            assert "cannot list the GPUs" in one["refused"]
        else:
            assert "refused" not in one and one["gpus"] > 0, one
            assert one["lost"] == [], one
