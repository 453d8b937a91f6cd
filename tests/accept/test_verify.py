"""What the checksums cannot find: a result that was edited, with a certificate made anew from it."""

from pathlib import Path

import msgspec
import pytest

from loadgen.schema.result import RESULT
from loadgen.store.acceptance import verify, write_certificate_json
from loadgen.store.runs import read_result, write_result
from tests.accept.simulated import acceptance, carried_out, profile


async def test_an_edited_result_is_not_what_its_journal_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = acceptance(profile("performance", starts=2))
    await carried_out(one)
    assert verify(one.folder) == []
    path = one.folder / "02-performance" / RESULT
    result = read_result(path)
    stage = msgspec.structs.replace(result.stages[0], measured_s=result.stages[0].measured_s + 1)
    write_result(msgspec.structs.replace(result, stages=[stage]), path)
    write_certificate_json(one.folder)
    assert verify(one.folder) == [f"02-performance/{RESULT}: its journal gives another result"]
