"""A journal's first line, for tests that need one and ask nothing of it."""

from loadgen.schema.journal import RunStarted

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
