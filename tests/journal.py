"""A journal's first line, and what a record makes of lines."""

from collections.abc import Iterable

from loadgen.record.record import Record
from loadgen.schema.journal import Line, RunStarted

STARTED = RunStarted(
    unix_s=1.7e9,
    run_id="r",
    vramp_version="0",
    profile={},
    environment={},
    workers=1,
    seed=1,
    stages_planned=1,
)


def record_of(lines: Iterable[Line]) -> Record:
    record = Record()
    for line in lines:
        record.apply(line)
    return record
