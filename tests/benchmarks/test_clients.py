"""The clients that are compared: what they are asked for, and their own figures in the files that they leave."""

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.clients import CLIENTS, FLOOR, Client, Load, Reported, of_foreign
from loadgen.simulator import tokens

FOREIGN = Path(__file__).parents[1] / "store/foreign/files"
FILES = Path(__file__).with_name("files")


@pytest.mark.parametrize(
    ("name", "source", "reported"),
    [
        ("vllm bench", FOREIGN / "vllm_bench_0.32_detailed.json", Reported(65.5, 80.69, 10.0, 10.0)),
        ("vllm-rs", FOREIGN / "vllm_bench_0.32_detailed.json", Reported(65.5, 80.69, 10.0, 10.0)),
        ("guidellm", FOREIGN / "guidellm_0.8.json", Reported(62.5, 70.5, 10.25, 10.75)),
        ("aiperf", FOREIGN / "aiperf_0.13.json", Reported(64.0, 74.0, 10.375, 10.875)),
        (
            "mlcommons",
            FILES / "endpoints_0.1.json",
            Reported(60.523871036458336, 68.951857, 10.028042263800023, 10.198524669291338),
        ),
    ],
)
def test_the_figures_of_a_peer(name: str, source: Path, reported: Reported, tmp_path: Path) -> None:
    (client,) = (client for client in CLIENTS if client.name.startswith(name))
    path = tmp_path / client.file
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, path)
    assert client.read(path) == reported


def test_the_floor_prints_its_figures(tmp_path: Path) -> None:
    (tmp_path / FLOOR.file).write_text("49152 0.2 8.1 56.25\n")
    assert FLOOR.read(tmp_path / FLOOR.file) == Reported(56.25)


def test_another_file_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "vllm.json").write_text("{}")
    with pytest.raises(ValueError, match=r"vllm\.json is not a result"):
        of_foreign(tmp_path / "vllm.json")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_is_requested_the_same(client: Client, tmp_path: Path) -> None:
    load = Load("http://127.0.0.1:8123", streams=17, requests=51, folder=tmp_path)
    command = " ".join(client.command(Path("/opt/program"), load))
    for requested in ("/opt/program", "8123", "17", "51"):
        assert requested in command, requested


def test_prompts_and_answers_have_the_tokens_that_the_server_counts(tmp_path: Path) -> None:
    load = Load("http://127.0.0.1:8123", streams=1, requests=3, folder=tmp_path)
    load.write()
    prompts = [json.loads(line) for line in load.prompts.read_text().splitlines()]
    assert len({prompt["prompt"] for prompt in prompts}) == 3
    assert all(prompt["prompt"] == prompt["text"] for prompt in prompts)
    assert {prompt["output_tokens_count"] for prompt in prompts} == {128}
    vocabulary = json.loads((load.tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    words = [prompt["prompt"].split() for prompt in prompts] + [tokens.text(tokens.answer_ids(0, 128)).split()]
    for text in words:
        assert set(text) <= set(vocabulary)
        assert len(tokens.encode(" " + " ".join(text))) == len(text)
    assert [len(text) for text in words] == [127, 127, 127, 128]
