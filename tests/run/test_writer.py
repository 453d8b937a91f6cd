"""What the first line of a journal tells, and what it keeps to itself."""

import json

from loadgen.metrics.journal import encode_line
from loadgen.run.writer import run_started
from tests.engines import profile


def test_no_secret_reaches_the_journal() -> None:
    secret = "sk-0123456789"
    server = {
        "engine": "vllm",
        "model": "org/model",
        "env": {"HF_TOKEN": secret},
        "args": {"api-key": secret, "max-num-seqs": 8},
    }
    told = run_started(
        profile(server, load={"extra_body": {"router": {"api_key": secret}, "top_k": 5}}),
        "run",
        1,
        1,
        1,
        monotonic_s=0.0,
    )
    text = encode_line(told).decode()
    assert secret not in text
    document = json.loads(text)["profile"]
    assert document["load"]["extra_body"] == {"router": {"api_key": "***"}, "top_k": 5}
    assert document["server"]["args"] == {"api-key": "***", "max-num-seqs": 8}
