"""The short document of a run: whole, small, and the figures of the result."""

import json
from pathlib import Path

import jsonschema_rs
from msgspec.structs import replace

from loadgen.record.summary import summary_json, summary_of
from loadgen.schema.engine import EngineStage, SpecDecode
from loadgen.schema.finding import Verdict
from loadgen.schema.hardware_result import ComputeResult, EnergyResult, GpuFigure, GpuStage
from loadgen.schema.result import StageResult, json_schema
from loadgen.schema.samples import GpuStatic
from loadgen.schema.summary import SUMMARY_SCHEMA, SUMMARY_SCHEMA_PATH, RunSummary
from loadgen.store.recover import recover
from tests.engines import MANAGED, profile
from tests.run.driving import finish, run_of

LOADS = range(1, 11)
FIGURES = {f"{name}_ms": 1.0 for name in ("ttft_p50", "ttft_p99", "tpot_p50", "e2e_mean")}
FIGURES |= {"output_tokens_per_s": 500.0, "total_tokens_per_s": 1500.0}
MAX_BYTES = 20_000
SCHEMA = jsonschema_rs.Draft202012Validator(json.loads(SUMMARY_SCHEMA_PATH.read_text()))
GIB = 1 << 30
FIRMWARE = {f"COMPONENT_{number}": f"0x0000{number:04x}" for number in range(24)}
FIGURE = GpuFigure(612.34567, 612.34567, 612.34567, 612.34567, 612.34567)
GPU = GpuStage(
    index=0,
    name="AMD Instinct MI300X",
    looks=60,
    of_server=True,
    hbm_used_bytes_max=171 * GIB,
    hbm_total_bytes=192 * GIB,
    gfx_percent=FIGURE,
    power_w=FIGURE,
    temperature_hotspot_c=FIGURE,
)
STATIC = GpuStatic(index=0, vendor="amd", name=GPU.name, hbm_total_bytes=192 * GIB, firmware=FIRMWARE)


def with_all(stage: StageResult) -> StageResult:
    """What a stage of a second on a simulator does not measure."""
    spec = SpecDecode(drafts=1, drafted_tokens=3, accepted_tokens=2, acceptance=0.6666666)
    verdicts = [Verdict("kv-limited", "stage", "a long sentence " * 9), Verdict("tail", "stage", "a short one")]
    return replace(
        stage,
        gpu=[replace(GPU, index=index) for index in range(8)],
        energy=EnergyResult(12345.678, "counter", False, 60.0, 1.2345678, 0.8, ()),
        compute=ComputeResult(412.3, "fp8", 2614.9, 15.7678, "", 3e12, 5.3e12, 56.612345),
        engine=replace(stage.engine or EngineStage(), spec=spec),
        verdicts=verdicts,
        inconclusive="a reason",
    )


async def test_summary_of_ten_stages_with_everything_on_is_short() -> None:
    system = {"model": "m", "version": "0.32.0", "gpu": "MI300X", "gpus": 8}
    run = run_of(
        profile(
            MANAGED,
            telemetry="sim",
            load={"concurrency": [*LOADS], "requests": 10},
            slo={"ttft_p99": "0.001ms", "tpot_p99": "100s", "e2e_p99": "100s", "tpot": "100s"},
            cost={"gpu_hour": 2.1},
            canary={"enabled": True},
            reference={
                "source": "a publication",
                "system": system,
                "points": [{"concurrency": load, "figures": FIGURES} for load in LOADS],
            },
        )
    )
    result = await finish(run)
    document = (run.folder / "summary.json").read_bytes()
    SCHEMA.validate(json.loads(document))
    assert b"hdr" not in document
    assert document == summary_json(summary_of(result))
    recover(run.folder, force=True)
    assert (run.folder / "summary.json").read_bytes() == document

    full = replace(result, stages=[*map(with_all, result.stages)], gpus=[replace(STATIC, index=n) for n in range(8)])
    longest = summary_json(summary_of(full))
    SCHEMA.validate(json.loads(longest))
    assert len(longest) <= MAX_BYTES


def test_every_field_of_the_summary_is_documented() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "summary.md").read_text()
    parts = json.loads(SUMMARY_SCHEMA_PATH.read_text())["$defs"]
    missing = [name for part in parts.values() for name in part["properties"] if f"`{name}`" not in manual]
    assert missing == []


def test_shipped_summary_schema_is_that_of_the_code() -> None:
    assert SUMMARY_SCHEMA_PATH.read_text() == json_schema(RunSummary, SUMMARY_SCHEMA), "run `make schema`"
