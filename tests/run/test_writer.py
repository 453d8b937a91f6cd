"""What the first line of a journal tells, and what it keeps to itself."""

import json

from loadgen.run.settings import RunSettings
from loadgen.run.writer import RunWriter
from loadgen.store.journal import JOURNAL
from tests.engines import profile


async def test_no_secret_reaches_the_journal() -> None:
    secret = "sk-0123456789"
    server = {
        "engine": "vllm",
        "model": "org/model",
        "env": {"HF_TOKEN": secret},
        "args": {"api-key": secret, "max-num-seqs": 8},
    }
    parts = profile(server, load={"extra_body": {"router": {"api_key": secret}, "top_k": 5}})
    writer = RunWriter(RunSettings(parts, where="test"))
    writer.begin(seed=1, workers=1, stages_planned=1)
    await writer.finish("stopped", "enough")
    text = (writer.folder / JOURNAL).read_text()
    assert secret not in text
    document = json.loads(text.splitlines()[0])["profile"]
    assert document["load"]["extra_body"] == {"router": {"api_key": "***"}, "top_k": 5}
    assert document["server"]["args"] == {"api-key": "***", "max-num-seqs": 8}
