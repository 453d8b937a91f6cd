"""The document as a parser sees it: what stands in it, and that nothing from outside became a tag or a script."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from loadgen.format import harmless
from loadgen.report.html.run_page import html_report
from loadgen.schema.engine import EngineStage
from loadgen.schema.hardware_result import ComputeResult
from loadgen.schema.result import CostResult, Result
from tests.report.conftest import EVIL
from tests.report.test_text import result, stage

replace = msgspec.structs.replace

TAGS = set(
    """
    html head meta title style body main header section footer p h1 h2 h3 span dl dt dd ul li b i div figure table thead
    tbody tr th td pre script noscript
    """.split()
)


class Page(HTMLParser):
    """Tags, attributes and texts of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return "\n".join(text.strip() for text in self.texts if text.strip())

    @property
    def figures(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.scripts[0] if self.scripts else "{}")
        return document


@pytest.fixture(scope="module")
def page(measured: Result) -> Page:
    return Page(html_report(measured))


def test_answers_and_numbers_come_first(page: Page, measured: Result) -> None:
    assert measured.environment["model"] in page.text
    beginning = page.text[: page.text.index("The load curve")]
    for words in ("Healthy?", "Saturated?", "What was the limit?", "Missed at 2 of 2 stages", "output tok/s"):
        assert words in beginning
    for title in (
        "Throughput",
        "Published and measured",
        "Latency",
        "What happened when",
        "Client and engine",
        "Client",
        "Configuration",
    ):
        assert f"\n{title}\n" in page.text
    assert "the fan is loud" in page.text
    assert "load.concurrency" in page.text and "loadgen.simulator" in page.text


def test_what_tokens_took_and_why_no_share_of_the_peak_is_known(measured: Result) -> None:
    engine = EngineStage(unavailable={"tflops_per_gpu": "counted with a flag only"})
    first, second = measured.stages
    reported = ComputeResult(tflops_per_gpu=100.0, why="no peak is known of it", hbm_bytes_per_s=2.5e12)
    stages = [
        replace(first, engine=engine, compute=None),
        replace(second, compute=reported, cost=CostResult(2.1, 1.25, 0.5)),
    ]
    text = Page(html_report(replace(measured, stages=stages))).text
    section = text[text.index("Tokens by user, GPU, power and money") :]
    assert "unknown: counted with a flag only; unknown: no peak is known of it" in section
    heads = ("per user", "decode, per stream", "$ per million tokens", "per GPU, by the engine", "TFLOP/s", "HBM GB/s")
    assert all(head in section for head in heads)
    assert "\n2,500\n" in section and "\n1.250\n0.500\n" in section


def test_every_figure_has_its_place(page: Page) -> None:
    places = {value for name, value in page.attributes if name == "id"} - {"figures"}
    assert set(page.figures) == places
    assert {"curve-ttft", "frontier", "distribution-itl", "timeline"} <= places


def test_nothing_is_fetched_and_only_our_scripts_run(page: Page) -> None:
    assert not {name for name, _ in page.attributes} & {"src", "href", "srcset", "onload", "onerror"}
    assert page.policy.startswith("default-src 'none'; ")
    for script in page.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page.policy
    assert len(page.scripts) == 3
    assert "unsafe-inline" not in page.policy.partition("script-src")[2].partition(";")[0]


def test_texts_from_outside_are_texts(hostile: Result) -> None:
    text = html_report(hostile)
    page = Page(text)
    assert page.tags <= TAGS
    assert len(page.scripts) == 3
    assert {name for name, _ in page.attributes} <= {
        *("charset", "http-equiv", "content", "name", "class", "id", "type", "lang", "style", "colspan"),
    }
    assert harmless(EVIL) in page.text
    assert "\x1b[2J" not in text.replace(page.scripts[1], "") and "\u202e" not in text.replace(page.scripts[1], "")
    # plotly takes tags in a text for formatting: those in the data must be escaped once more.
    assert not re.search(r"<(script|img)", json.dumps(page.figures))


def test_a_run_without_numbers_is_a_page_too() -> None:
    began = "2026-01-01T00:00:00.000Z"
    for empty in (result(state="failed"), result(stage(0, reset=3)), result(stage(80))):
        page = Page(html_report(msgspec.structs.replace(empty, started_at=began)))
        assert "Healthy?" in page.text
        assert "timeline" not in page.figures
