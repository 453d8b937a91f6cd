"""Headless Chromium, driven by the protocol of WebDriver: what is on a page, and keys."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

_FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update "
    "disable-sync"
).split()
_STARTED = re.compile(r"started successfully on port (\d+)")


class Page:
    """What the browser shows."""

    def __init__(self, http: httpx.Client, session: str) -> None:
        self._http = http
        self._session = f"/session/{session}"

    def _post(self, command: str, **body: Any) -> Any:
        answer = self._http.post(f"{self._session}/{command}", json=body).json()["value"]
        assert not isinstance(answer, dict) or "error" not in answer, answer
        return answer

    def before_load(self, script: str) -> None:
        """Run a script in each page before its own."""
        self._post("goog/cdp/execute", cmd="Page.addScriptToEvaluateOnNewDocument", params={"source": script})

    def open(self, url: str) -> None:
        self._post("url", url=url)

    def run(self, script: str) -> Any:
        """The value that a function body returns."""
        return self._post("execute/sync", script=script, args=[])

    def run_when_it_calls(self, script: str) -> Any:
        """The value that a function body passes to its last argument, whenever that is."""
        return self._post("execute/async", script=script, args=[])

    def press(self, key: str) -> None:
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._post("actions", actions=[{"type": "key", "id": "keys", "actions": keys}])

    def screenshot(self, path: Path) -> None:
        answer = self._http.get(f"{self._session}/screenshot").json()["value"]
        path.write_bytes(base64.b64decode(answer))

    def log(self) -> list[str]:
        return [entry["message"] for entry in self._post("se/log", type="browser")]


@contextmanager
def chromium(folder: Path, *, width: int = 1500, height: int = 900) -> Iterator[Page]:
    """A browser with an empty profile in this folder."""
    driver = shutil.which("chromedriver")
    assert driver is not None, "chromedriver is not installed: apt-get install chromium chromium-driver"
    with subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            port = next(found[1] for line in process.stdout if (found := _STARTED.search(line)))
            arguments = [*_FLAGS, f"window-size={width},{height}", f"user-data-dir={folder / 'profile'}"]
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": [f"--{argument}" for argument in arguments]},
                "goog:loggingPrefs": {"browser": "ALL"},
                "timeouts": {"script": 60_000},
            }
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, trust_env=False) as http:
                body = {"capabilities": {"alwaysMatch": wanted}}
                session = http.post("/session", json=body).json()["value"]["sessionId"]
                try:
                    yield Page(http, session)
                finally:
                    http.delete(f"/session/{session}")
        finally:
            process.terminate()
