"""Access control of the cockpit in a browser: who is let in, and who is not."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiohttp
import psutil
import pytest

from loadgen import system
from loadgen.errors import ServerError
from tui.web.server import MAX_COLUMNS, listen, serving

# What a Textual app says to textual-serve: that it is one, then a packet; it ends when it is told anything at all.
APP = "import os; os.write(1, b'__GANGLION__\\n' + b'D' + (5).to_bytes(4, 'big') + b'hello'); os.read(0, 1)"
COMMAND = (sys.executable, "-c", APP, "; touch '/tmp/$(id)' #")


@asynccontextmanager
async def door(command: Sequence[str] = COMMAND) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """A client, and the address with its token."""
    with listen("127.0.0.1", 0) as listening:
        async with serving(command, listening, host="127.0.0.1") as address, aiohttp.ClientSession() as client:
            yield client, address


async def status(client: aiohttp.ClientSession, address: str, **headers: str) -> int:
    async with client.get(address, headers=headers) as answer:
        return answer.status


def socket_address(address: str) -> str:
    parts = urlsplit(address)
    return f"ws://{parts.netloc}/ws/{parts.query.removeprefix('token=')}"


def wait_for_end(process: psutil.Process) -> None:
    """Wait for a child of asyncio's, and leave it to asyncio: psutil would take its exit status away."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


async def until_ended(*processes: psutil.Process) -> None:
    """Until asyncio knows it too: a loop that closes before leaves a warning to whichever test comes next."""
    for process in processes:
        await asyncio.to_thread(wait_for_end, process)
    pids = {process.pid for process in processes}
    children = [each for each in gc.get_objects() if issubclass(type(each), asyncio.SubprocessTransport)]
    ours = [child for child in children if child.get_pid() in pids]
    while not all(child.is_closing() for child in ours):  # noqa: ASYNC110 - asyncio tells nobody
        await asyncio.sleep(0)


async def test_page_needs_the_token_and_fetches_nothing_else() -> None:
    async with door() as (client, address):
        async with client.get(address) as answer:
            page = await answer.text()
            policy = answer.headers["Content-Security-Policy"]
        assert answer.status == 200
        assert socket_address(address) in page
        assert "https://" not in page and "http://" not in page
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        for path in ("static/js/textual.js", "static/css/xterm.css", "page.js"):
            assert await status(client, address.partition("?")[0] + path) == 200


async def test_nobody_else_comes_in() -> None:
    async with door() as (client, address):
        host = urlsplit(address).netloc
        assert await status(client, f"http://{host}/") == 403
        assert await status(client, f"http://{host}/?token=guess") == 403
        assert await status(client, f"http://{host}/ws") == 403
        assert await status(client, f"http://{host}/ws/guess") == 403
        # A name that leads here although it is not ours, and a page from elsewhere.
        assert await status(client, address, Host="evil.example") == 403
        assert await status(client, address, Host="[") == 403
        assert await status(client, address, Origin="http://evil.example") == 403
        assert await status(client, address, Origin="null") == 403
        assert await status(client, address, Origin=f"http://{host}") == 200
        assert await status(client, address, Host="localhost:9000") == 200
        for origin in ("http://evil.example", "http://localhost:1"):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await client.ws_connect(socket_address(address), origin=origin)


async def test_browser_command_is_quoted_for_a_shell() -> None:
    before = set(psutil.Process().children())
    async with door() as (client, address):
        async with client.ws_connect(socket_address(address)) as socket:
            assert (await socket.receive_bytes()) == b"hello"
            (process,) = set(psutil.Process().children()) - before
            assert tuple(process.cmdline()) == COMMAND
        await until_ended(process)


async def test_what_vramp_has_set_for_itself_is_not_taken_for_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_chosen", {"OPENBLAS_NUM_THREADS"})
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", "__all__")
    said = "(os.getenv('OPENBLAS_NUM_THREADS', '-') + os.getenv('PYDANTIC_DISABLE_PLUGINS', '-') + '...').encode()"
    before = set(psutil.Process().children())
    async with door((sys.executable, "-c", APP.replace("b'hello'", said))) as (client, address):
        async with client.ws_connect(socket_address(address)) as socket:
            assert (await socket.receive_bytes()) == b"7-..."
            started = set(psutil.Process().children()) - before
        await until_ended(*started)


async def test_when_the_server_ends_no_process_is_left() -> None:
    before = set(psutil.Process().children())
    async with door() as (client, address):
        sockets = [await client.ws_connect(socket_address(address)) for _ in range(2)]
        for socket in sockets:
            await socket.receive_bytes()
        processes = set(psutil.Process().children()) - before
        assert len(processes) == 2
        closing = [asyncio.create_task(socket.receive()) for socket in sockets]
    await until_ended(*processes)
    await asyncio.gather(*closing)


def test_a_port_that_is_taken_is_reported() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ServerError, match="choose another with --host and --port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_a_name_that_no_host_can_have_is_reported() -> None:
    with pytest.raises(ServerError, match=r"é\.\.x:0: cannot listen: .*--host"):
        listen("é..x", 0)


async def test_strangers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.web.server.MAX_STRANGERS", 8)
    async with door() as (client, address):
        parts = urlsplit(address)
        strangers = [await asyncio.open_connection(parts.hostname, parts.port) for _ in range(20)]
        for reader, _ in strangers[:12]:
            assert await reader.read() == b""  # the oldest are closed
        assert await status(client, address) == 200
        for _, writer in strangers:
            writer.close()


async def test_a_connection_without_the_token_is_closed_after_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.web.server._STRANGER_S", 0.2)
    async with door() as (client, address):
        parts = urlsplit(address)
        silent, closing = await asyncio.open_connection(parts.hostname, parts.port)
        assert await silent.read() == b""
        slow, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"GET /page.js HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        assert (await slow.readline()).startswith(b"HTTP/1.1 200")
        await slow.read()  # until it is closed: what everybody may fetch does not show the token
        async with client.ws_connect(socket_address(address)) as socket:
            await socket.receive_bytes()
            assert await silent.read() == b""
            await socket.send_str('["ping", 1]')
            assert await socket.receive_json() == ["pong", 1]
        closing.close()
        writer.close()


async def test_visitors_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.web.server.MAX_VISITORS", 1)
    async with door() as (client, address), client.ws_connect(socket_address(address)) as socket:
        await socket.receive_bytes()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await client.ws_connect(socket_address(address))


ECHO = """import os
os.write(1, b"__GANGLION__\\n")
while data := os.read(0, 1024):
    os.write(1, b"D" + len(data).to_bytes(4, "big") + data)
"""  # what textual-serve writes to it


async def test_a_size_that_nobody_has_is_clamped_and_garbage_is_ignored() -> None:
    async with (
        door((sys.executable, "-c", ECHO)) as (client, address),
        client.ws_connect(socket_address(address)) as socket,
    ):
        for garbage in ("[", "{}", "[]", '["resize"]', '["resize", {"width": "x"}]', '["stdin", 5]'):
            await socket.send_str(garbage)
        await socket.send_str('["resize", {"width": 20000, "height": -3}]')
        resized = (await socket.receive_bytes())[5:]
        assert json.loads(resized) == {"type": "resize", "width": MAX_COLUMNS, "height": 1}


STUBBORN = APP.replace("os.read(0, 1)", "[os.read(0, 1) or __import__('signal').pause() for _ in iter(int, 1)]")


async def test_a_process_that_does_not_quit_is_killed_when_its_browser_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.web.server._ENDS_WITHIN_S", 0.2)
    before = set(psutil.Process().children())
    async with door((sys.executable, "-c", STUBBORN)) as (client, address):
        async with client.ws_connect(socket_address(address)) as socket:
            await socket.receive_bytes()
            (process,) = set(psutil.Process().children()) - before
        await until_ended(process)
