"""An acceptance as it goes on: what the screen and the progress lines are made of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from loadgen.report.html.certificate import write_certificate
from loadgen.run.accept.acceptance import Acceptance
from loadgen.run.accept.phases import carry_out, left_s
from loadgen.run.operations import Abort
from loadgen.schema.accept_view import AcceptView
from loadgen.schema.certificate import Certificate, Judged
from loadgen.store.acceptance import certificate_of

_LOOK_S = 1.0
_JUDGE_S = 2.0  # after new lines
_JUDGE_RUN_S = 10.0  # while only the run that goes on has something new


async def views(acceptance: Acceptance) -> AsyncIterator[AcceptView]:
    """Carry an acceptance out, and yield its state whenever it has changed; the last has the certificate as written.

    Raises `VrampError` if it cannot go on; what was measured until then is judged, too.
    """
    work = asyncio.create_task(carry_out(acceptance))
    certificate, judged_lines, judged_at_s = None, 0, 0.0
    try:
        while not work.done():
            acceptance.changed.clear()
            since_s = time.monotonic() - judged_at_s
            if certificate is None or since_s >= (_JUDGE_S if len(acceptance.lines) != judged_lines else _JUDGE_RUN_S):
                judged_lines, judged_at_s = len(acceptance.lines), time.monotonic()
                certificate = await asyncio.to_thread(certificate_of, acceptance.folder, acceptance.live)
            yield _view(acceptance, certificate)
            news = asyncio.create_task(acceptance.changed.wait())
            await asyncio.wait({work, news}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
    finally:
        if not work.done():
            acceptance.apply(Abort())
        await asyncio.wait({work})  # no server may be left behind
        work.exception()  # retrieved, or asyncio prints its traceback if the certificate cannot be written
        acceptance.write(Judged(unix_s=time.time()))
        certificate = await asyncio.to_thread(write_certificate, acceptance.folder)
        acceptance.close()
    work.result()
    yield _view(acceptance, certificate, over=True)


def _view(acceptance: Acceptance, certificate: Certificate, *, over: bool = False) -> AcceptView:
    return AcceptView(
        certificate,
        acceptance.phase,
        acceptance.run_folder.name if acceptance.run_folder is not None else "",
        acceptance.snapshot,
        left_s(acceptance),
        ending=acceptance.stopping.is_set(),
        over=over,
    )
