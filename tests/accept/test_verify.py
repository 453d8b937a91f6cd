"""A certificate holds for what it was made from: neither an edit nor what goes on later makes another one of that."""

import asyncio
import re
import shutil
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

PROFILE = profile("output", question_count=20)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an acceptance that passed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("judged"))
        one = acceptance(PROFILE)
        asyncio.run(carried_out(one))
        return one.folder.absolute()


@pytest.fixture
def folder(judged: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(judged, tmp_path / judged.name))


def test_an_edited_result_is_not_what_its_journal_gives(folder: Path) -> None:
    assert verify(folder) == []
    path = folder / "01-output" / RESULT
    result = read_result(path)
    stage = msgspec.structs.replace(result.stages[0], measured_s=result.stages[0].measured_s + 1)
    write_result(msgspec.structs.replace(result, stages=[stage]), path)
    write_certificate_json(folder)
    assert verify(folder) == [f"01-output/{RESULT}: its journal gives another result"]


def test_what_was_edited_or_is_gone_does_not_go_on(folder: Path) -> None:
    run = folder / "01-output"
    edits: dict[Path, Callable[[bytes], bytes] | None] = {
        run / RESULT: None,
        run / JOURNAL: lambda content: content[:-1],
        folder / LINES: lambda content: content.replace(b'"trials":1', b'"trials":2'),
    }
    for path, edit in edits.items():
        before = path.read_bytes()
        path.unlink()
        if edit is not None:
            path.write_bytes(edit(before))
        with pytest.raises(ResultError, match=re.escape(f"{run if edit is None else path}: ")):
            acceptance(PROFILE, folder)
        path.write_bytes(before)
    (folder / CERTIFICATE).unlink()
    acceptance(PROFILE, folder).close()
