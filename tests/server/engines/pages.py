"""Pages of `/metrics`: of the real vLLM where the name has nothing else, else as the engines' sources define them."""

from pathlib import Path

from loadgen.server.engines.names import EngineSample
from loadgen.server.engines.sample import parse_engine_metrics

FOLDER = Path(__file__).with_name("pages")


def text_of(name: str) -> str:
    return FOLDER.joinpath(f"{name}.txt").read_text()


def page(name: str) -> EngineSample:
    return parse_engine_metrics(text_of(name))
