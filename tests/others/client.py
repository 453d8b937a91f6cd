"""A client that shares no code with vramp, for figures to put next to vramp's.

It reads with `http.client`, line by line, and takes the time when it has read a line: with one request at a time that
is nearly when it arrived.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    ttft_ms: float
    tpot_ms: float
    tokens: int  # by usage; without usage the events with text


def ask(url: str, body: Mapping[str, Any], headers: Mapping[str, str], tls: ssl.SSLContext | None = None) -> Answer:
    """Send one request for a stream, and read the answer to its end."""
    host, path = urlsplit(url).netloc, urlsplit(url).path
    connection = http.client.HTTPSConnection(host, context=tls) if tls else http.client.HTTPConnection(host)
    connection.connect()
    sent_s = time.perf_counter()
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    if response.status != 200:
        raise OSError(f"{url} answered {response.status}: {response.read()[:300]!r}")
    text_s, tokens = [], 0
    for line in iter(response.readline, b""):
        read_s = time.perf_counter()
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            before, tokens = tokens, (event.get("usage") or {}).get("completion_tokens") or tokens
            texts = [choice.get("text") or choice.get("delta", {}).get("content") for choice in event["choices"]]
            if any(texts) or (texts and tokens > before):  # a token need not have a text
                text_s.append(read_s)
    connection.close()
    tokens = tokens or len(text_s)
    return Answer((text_s[0] - sent_s) * 1e3, (text_s[-1] - text_s[0]) * 1e3 / (tokens - 1), tokens)
