"""A certificate holds for what it was made from: neither an edit nor what goes on later makes another one of that."""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from loadgen.errors import ResultError
from loadgen.schema.result import RESULT
from loadgen.store.acceptance import CERTIFICATE, LINES, verify, write_certificate_json
from loadgen.store.journal import JOURNAL
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


async def test_what_was_edited_or_is_gone_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind = profile("output", question_count=20)
    one = acceptance(kind)
    await carried_out(one)
    run = one.folder / "01-output"
    edits: dict[Path, Callable[[bytes], bytes] | None] = {
        run / RESULT: None,
        run / JOURNAL: lambda content: content[:-1],
        one.folder / LINES: lambda content: content.replace(b'"trials":1', b'"trials":2'),
    }
    for path, edit in edits.items():
        before = path.read_bytes()
        path.unlink()
        if edit is not None:
            path.write_bytes(edit(before))
        with pytest.raises(ResultError, match=re.escape(f"{run if edit is None else path}: ")):
            acceptance(kind, one.folder)
        path.write_bytes(before)
    (one.folder / CERTIFICATE).unlink()
    acceptance(kind, one.folder).close()
