"""The cockpit in a real browser: Chromium shows it, a key steers where that is allowed, and nothing else is fetched."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chromium import Page, chromium

pytestmark = pytest.mark.chromium

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\?token=\S+")
# Keeps what the terminal in the page gets, so that a test can wait for words: xterm.js paints them on a canvas.
EAVESDROP = """
window.shown = '';
window.WebSocket = class extends WebSocket {
  constructor(...words) {
    super(...words);
    const decoder = new TextDecoder();
    this.addEventListener('message', event => {
      if (typeof event.data !== 'string') window.shown += decoder.decode(event.data, {stream: true});
    });
  }
};
"""
WAIT = """
const [done, words] = [arguments[arguments.length - 1], %s];
const look = () => window.shown.includes(words) ? done(true) : setTimeout(look, 50);
look();
"""
PIXELS = """
return Math.max(...[...document.querySelectorAll('canvas')].map(canvas => {
  const copy = document.createElement('canvas');
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const context = copy.getContext('2d');
  context.drawImage(canvas, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, copy.width, copy.height).data.buffer);
  return new Set(data).size;
}));
"""


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`vramp web` on a simulator, and the address that it tells."""
    load = ["--concurrency", "2", "--isl", "16", "--osl", "8", "--duration", "60s", "--workers", "1"]
    command = [sys.executable, "-m", "tui.cli", "web", "simulator", *load, "--telemetry", "off", "--force"]
    command += ["--set", "server.args.startup-s=0.1", "--json", "o.json", "--port", "0", *words]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, **streams) as process:
        try:
            assert process.stderr is not None
            found = next(match for line in process.stderr if (match := ADDRESS.search(line)))
            yield process, found[0]
        finally:
            process.kill()


def shows(page: Page, words: str) -> None:
    """Wait until the terminal in the page got these words."""
    assert page.run_when_it_calls(WAIT % json.dumps(words))


def finish(process: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """Ctrl+C: the result, once it is clear that no process is left."""
    tree = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert psutil.wait_procs(tree, timeout=10)[1] == []
    assert "Throughput ---" in output and "\x1b" not in output
    document: dict[str, Any] = json.loads((folder / "o.json").read_text())
    return document


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with chromium(tmp_path) as page:
        page.before_load(EAVESDROP)
        yield page


def test_a_browser_shows_the_cockpit_and_steers_it_where_that_is_allowed(page: Page, tmp_path: Path) -> None:
    with served(tmp_path, "--allow-control") as (process, address):
        page.open(address)
        shows(page, "kernel")
        page.press("]")
        shows(page, "by hand")
        assert page.run(PIXELS) > 10, "a black page"
        assert not [entry for entry in page.log() if "Content Security Policy" in entry or "Uncaught" in entry]
        fetched = page.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
        assert {name.split("/")[2] for name in fetched} == {address.split("/")[2]}
        document = finish(process, tmp_path)
    assert document["state"] == "stopped"
    assert ("load", "conc 2 -> conc 4") in [(event["kind"], event["text"]) for event in document["events"]]
    assert [stage["target"]["concurrency"] for stage in document["stages"]] == [2, 4]


def test_without_leave_a_browser_only_looks(page: Page, tmp_path: Path) -> None:
    with served(tmp_path) as (process, address):
        page.open(address)
        shows(page, "kernel")
        page.press("]")
        shows(page, "steered elsewhere")
        # Leaving is the browser's own affair.
        page.press("q")
        document = finish(process, tmp_path)
    assert [event for event in document["events"] if event["kind"] == "load"] == []
    assert [stage["target"]["concurrency"] for stage in document["stages"]] == [2]
