"""`python -m tests.cluster.relay LISTEN TARGET DELAY_MS [FILE]`: forwards bytes, delayed by so much each way.

What came from clients is appended to the file: each piece is a line of JSON, `[connection, text]`. The relay runs in a
process of its own, so that its delay does not depend on what the test does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

_LARGEST = 1 << 16


async def pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float, seen: Callable[[bytes], None]
) -> None:
    """Write what comes `delay_s` after it came, until the end."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        writer.close()
        over.set_result(None)

    try:
        while data := await reader.read(_LARGEST):
            seen(data)
            loop.call_later(delay_s, writer.write, data)
    except ConnectionError:
        pass
    loop.call_later(delay_s, end)
    await over


async def main(listen: str, target: str, delay_ms: str, path: str = "/dev/null") -> None:
    numbers = count()
    delay_s = float(delay_ms) / 1e3

    with Path(path).open("a", buffering=1) as file:  # noqa: ASYNC230

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = next(numbers)
            host, port = target.split(":")
            there, back = await asyncio.open_connection(host, int(port))
            await asyncio.gather(
                pass_on(reader, back, delay_s, lambda data: print(json.dumps([number, data.decode()]), file=file)),
                pass_on(there, writer, delay_s, lambda data: None),
            )

        host, port = listen.split(":")
        async with await asyncio.start_server(connected, host, int(port)) as server:
            print("listens", flush=True)
            await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
