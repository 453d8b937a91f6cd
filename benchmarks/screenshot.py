"""`make screenshot`: takes the manual's pictures, of the cockpit and of report pages, from real runs on the simulator.

The three hosts (as root, with sshd) are network namespaces: two have clocks that differ from ours by 3 s, the third is
20 ms away from the server. The pages (with chromium only) show two variants of a server, and a published recipe with
its loads and published figures, on a simulated engine and with fewer requests, which takes nine minutes. Its figures
say nothing about the GPUs of the publication.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import shutil
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import asdict, replace
from textual.pilot import Pilot

from benchmarks.running import ROOT, attach, finish, scratch
from loadgen.profile.document import build_profile, load_profile
from loadgen.profile.schema import Profile
from loadgen.report.compare import compare_runs
from loadgen.report.html.compare import compare_page
from loadgen.report.html.run_page import html_report
from loadgen.run.accept.acceptance import Acceptance, AcceptSettings
from loadgen.run.accept.phases import views
from loadgen.run.operations import Abort, Stop
from loadgen.run.remote import RemoteRun
from loadgen.run.run import Run
from loadgen.run.settings import RunSettings
from loadgen.schema.result import RESULT, Result
from loadgen.store.acceptance import demands_of
from loadgen.store.runs import write_result
from tests.chromium import chromium
from tests.cluster.machines import cluster
from tests.cluster.operating import vramp, write_profile
from tests.telemetry.test_exporter import served
from tests.tui.cockpit import rows_of
from tui.app import Cockpit
from tui.screens.accept import AcceptScreen
from tui.screens.cockpit import CockpitScreen

KEYS = ("]", "]", "m", "]", "[")
NOTE = "fans at full speed"
PICTURES = {"cockpit": (), "latency": ("3",), "curve": ("2",)}
"""The keys of each picture's view, from the overview."""
_STAGE_S = 8
_RAMP_S = 240
_TO_THROUGHPUT = 24  # rows down from the first
RECIPE = ROOT / "profiles/mi355x-gpt-oss-120b.toml"
SIMULATED = {
    "engine": "simulator",
    "served_model_name": "openai/gpt-oss-120b",
    "args": {
        **{"base-ms": 3.0, "per-seq-ms": 0.08, "per-prefill-token-ms": 0.01, "enable-prefix-caching": False},
        **{"max-model-len": 10_368, "kv-blocks": 100_000, "dtype": "bfloat16", "enable-mfu-metrics": True},
        "gflop-per-token": 10.2,  # 5.1 billion active parameters
    },
}


VARIANTS = {"quick": {"base-ms": 10.0, "per-seq-ms": 1.2}, "wide": {"base-ms": 18.0, "per-seq-ms": 0.35}}
"""Short steps that grow with every stream, and long ones that hold many: neither is better at every load."""
STEPS = {"concurrency": [1, 2, 4, 8, 16, 32], "isl": 256, "osl": 64, "duration": "8s", "warmup": "1s"}


async def take() -> None:
    """Double the load a few times, halve it once, look at the views, stop."""
    overrides = ["load.seed=1", 'slo.ttft_p99="250ms"']
    run = Run(
        RunSettings(load_profile(ROOT / "profiles/simulator.toml", overrides), where="screenshot", hold_open=True)
    )
    cockpit = Cockpit(CockpitScreen(run))
    async with cockpit.run_test(size=(160, 45)) as pilot:
        for key in KEYS:
            await asyncio.sleep(_STAGE_S)
            await pilot.press(key)
            if key == "m":
                await pilot.press(*(character if character != " " else "space" for character in NOTE), "enter")
        await asyncio.sleep(_STAGE_S)
        for name, keys in PICTURES.items():
            await _picture(pilot, cockpit, name, keys)
        run.apply(Stop())
        await run.close()


async def _picture(pilot: Pilot[None], cockpit: Cockpit, name: str, keys: tuple[str, ...]) -> None:
    await pilot.press("escape", "escape", *keys)
    await pilot.pause(1)
    (ROOT / f"docs/images/{name}.svg").write_text(cockpit.export_screenshot(title="vramp"), encoding="utf-8")


ACCEPTED = {
    "name": "rack1-box9",
    "telemetry": "sim",
    "server": {
        "engine": "simulator",
        "served_model_name": "simulated-70b",
        "args": {"startup-s": 1, "tensor-parallel-size": 8},
    },
    "load": {"isl": 512, "osl": 64, "concurrency": [4, 8], "duration": "10s", "warmup": "1s", "realtime": True},
    "slo": {"ttft_p50": "500ms", "tpot_p50": "20ms"},
    "accept": {
        "starts": 3,
        "burn_in": "24h",
        "criteria": [
            {"figure": "exact_match_percent", "at_least": 95, "source": "what this model reached elsewhere"},
            {
                "figure": "output_tokens_per_s",
                "concurrency": 8,
                "at_least": 640,
                "margin": "5%",
                "source": "the first box of this rack",
            },
        ],
    },
}


async def take_acceptance() -> None:
    """Accept a simulated box up to the first half minute of its burn-in."""
    profile = build_profile(ACCEPTED, where="screenshot")
    demands, _, _ = demands_of(profile)
    settings = AcceptSettings(profile=profile, where="screenshot", repeats=False, demands=demands)
    acceptance = Acceptance(settings)
    screen = AcceptScreen(acceptance.folder, views(acceptance), acceptance.apply)
    cockpit = Cockpit(screen)
    async with cockpit.run_test(size=(160, 45)) as pilot:
        while acceptance.phase != "burn-in":
            acceptance.changed.clear()
            await acceptance.changed.wait()
        await asyncio.sleep(5 * _STAGE_S)
        await pilot.press(*["down"] * _TO_THROUGHPUT)
        await pilot.pause(1)
        (ROOT / "docs/images/accept.svg").write_text(cockpit.export_screenshot(title="vramp"), encoding="utf-8")
        acceptance.apply(Stop())
        await cockpit.close_acceptance()


async def take_monitor() -> None:
    """Watch a server that another run drives: in a large terminal, then in a small one."""
    overrides = ["load.seed=1", "load.concurrency=[4, 16, 32]", 'load.duration="15s"', "canary.enabled=false"]
    driver = Run(
        RunSettings(load_profile(ROOT / "profiles/simulator.toml", overrides), where="screenshot", hold_open=True)
    )
    url = asyncio.get_running_loop().create_future()

    async def drive() -> None:
        async for snapshot in driver.snapshots():
            if snapshot.stages and not url.done():
                url.set_result(snapshot.server.url)

    driving = asyncio.create_task(drive())
    watched = attach(await url, {"concurrency": 0}, name="monitor", telemetry="off")
    run = Run(RunSettings(watched, where="screenshot", hold_open=True))
    cockpit = Cockpit(CockpitScreen(run))
    async with cockpit.run_test(size=(200, 50)) as pilot:
        await asyncio.sleep(5 * _STAGE_S)
        await _picture(pilot, cockpit, "monitor", ())
        await pilot.resize_terminal(80, 24)
        await _picture(pilot, cockpit, "monitor-small", ())
        run.apply(Stop())
        await run.close()
    driver.apply(Stop())
    await driving


async def take_stall() -> None:
    """Wait until a server whose kernel hangs is called stalled and its evidence is written."""
    overrides = ["load.seed=1", 'server.args.fault="kernel:nth=500"']
    run = Run(RunSettings(load_profile(ROOT / "profiles/simulator.toml", overrides), where="screenshot"))
    cockpit = Cockpit(CockpitScreen(run))
    async with cockpit.run_test(size=(160, 45)) as pilot:
        while not list(run.folder.glob("evidence/evidence.md")):  # noqa: ASYNC110 - only the file says so
            await asyncio.sleep(1)
        await asyncio.sleep(3)
        await _picture(pilot, cockpit, "stall", ())
        run.apply(Abort())
        await run.close()


def exporter_page() -> str:
    """Return dcgm-exporter's page for eight GPUs whose load rises and falls; the sixth gets hot."""
    lines = []
    for gpu in range(8):
        busy = 0.5 + 0.45 * math.sin(time.monotonic() / 9 + gpu / 6)
        values = {
            "DCGM_FI_DEV_GPU_UTIL": 100 * busy,
            "DCGM_FI_PROF_SM_ACTIVE": 0.8 * busy,
            "DCGM_FI_PROF_DRAM_ACTIVE": 0.7 * busy,
            "DCGM_FI_DEV_SM_CLOCK": 1980 - 150 * busy,
            "DCGM_FI_DEV_MAX_SM_CLOCK": 1980,
            "DCGM_FI_DEV_POWER_USAGE": 120 + 560 * busy,
            "DCGM_FI_DEV_POWER_MGMT_LIMIT": 700,
            "DCGM_FI_DEV_GPU_TEMP": 38 + 34 * busy + 14 * (gpu == 5),
            "DCGM_FI_DEV_MEMORY_TEMP": 44 + 36 * busy,
            "DCGM_FI_DEV_FB_USED": 70_400 + 120 * gpu,
            "DCGM_FI_DEV_FB_TOTAL": 81_559,
        }
        labels = f'gpu="{gpu}",UUID="GPU-{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="gpu-1"'
        lines += [f"{name}{{{labels}}} {value}" for name, value in values.items()]
    return "\n".join([*lines, ""])


async def take_exporter() -> None:
    """Watch eight GPUs of another machine, without a server."""
    with served(exporter_page) as url:
        document = {
            "name": "monitor",
            "server": {"engine": "none"},
            "load": {"concurrency": 0},
            "telemetry": {"exporters": [url]},
        }
        run = Run(RunSettings(build_profile(document, where="screenshot"), where="screenshot", hold_open=True))
        cockpit = Cockpit(CockpitScreen(run))
        async with cockpit.run_test(size=(160, 45)) as pilot:
            await asyncio.sleep(8 * _STAGE_S)
            await _picture(pilot, cockpit, "exporter", ("4",))
            run.apply(Stop())
            await run.close()


async def take_sessions() -> None:
    """Raise the number of live sessions until their contexts no longer fit into the KV cache."""
    args = {"kv-blocks": 9000, "per-prefill-token-ms": 0.004, "enable-prompt-tokens-details": True}
    sessions = {"data": "sample", "scale": 0.05, "max_gap": "6s", "max_context": 20_000}
    document = {
        "name": "sessions",
        "server": {"engine": "simulator", "served_model_name": "simulated-70b", "args": args},
        "load": {"sessions": sessions, "seed": 5},
        "plan": {"ramp": {"start": 8, "end": 64, "over": f"{_RAMP_S}s", "steps": 8}},
    }
    run = Run(RunSettings(build_profile(document, where="screenshot"), where="screenshot", hold_open=True))
    cockpit = Cockpit(CockpitScreen(run))
    async with cockpit.run_test(size=(160, 45)) as pilot:
        await asyncio.sleep(_RAMP_S)
        await _picture(pilot, cockpit, "sessions", ("a",))
        run.apply(Stop())
        await run.close()


async def take_cluster(folder: Path) -> None:
    """Watch a run whose load comes from three hosts."""
    load = {"isl": 64, "osl": 128, "seed": 1, "concurrency": [12, 24, 48], "duration": f"{2 * _STAGE_S}s"}
    with cluster("--preset", "bench", clocks_s=(-3, 0, 3)) as it, it.relayed(it.hosts[1].machine, delay_ms=20.0):
        write_profile(it, folder, load, {})
        with vramp(it, folder, "--set", "name=three-hosts", "--set", "telemetry=off") as (running, _):
            running.wait_for_load(3)
            (run_folder,) = (folder / "runs").iterdir()
            cockpit = Cockpit(CockpitScreen(RemoteRun(run_folder, steers=False), watching=True, read_only=True))
            async with cockpit.run_test(size=(160, 45)) as pilot:
                await asyncio.sleep(5 * _STAGE_S)
                await _picture(pilot, cockpit, "cluster", ())
                cockpit.exit()


def recipe() -> Profile:
    """Return the recipe on a simulated engine: one or two waves of requests for each of its loads."""
    document = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    load = document["load"]
    stages = [
        {"concurrency": streams, "isl": isl, "osl": osl, "requests": streams * (2 if osl <= 1024 else 1)}
        for isl, osl in load["shapes"]
        for streams in load["concurrency"]
    ]
    published = {"description": document["description"], "reference": document["reference"], "stages": stages}
    return build_profile(
        {"name": RECIPE.stem, "server": SIMULATED, "telemetry": "sim", **published}, where="screenshot"
    )


async def take_trend(folder: Path) -> None:
    """Forty copies of a simulated run, whose rates vary by 1 % around a value that rises by 4 % with the last version.

    Rates and versions are made up: the picture shows what a trend looks like, and nothing of vLLM.
    """
    server = {"engine": "simulator", "served_model_name": "simulated-70b", "args": VARIANTS["wide"]}
    load = STEPS | {"concurrency": [16], "duration": "20s"}
    result = await finish(build_profile({"name": "nightly", "server": server, "load": load}, where="screenshot"))
    draw = random.Random(3)
    for day in range(40):
        version = ("0.29.0", "0.30.0", "0.31.0", "0.32.0")[day // 10]
        scale = draw.gauss(1.04 if version == "0.32.0" else 1.0, 0.01)
        started = datetime(2026, 10, 1, 3, tzinfo=UTC) + timedelta(days=day)
        run = folder / "runs" / f"{started:%Y%m%dT%H%M%SZ}-nightly"
        run.mkdir(parents=True)
        write_result(_copied(result, started, version, scale), run / RESULT)
    with contextlib.chdir(folder):
        cockpit = Cockpit()
        async with cockpit.run_test(size=(160, 45)) as pilot:
            await pilot.press("p")
            while "since 0.32.0" not in "\n".join(rows_of(cockpit)):
                await pilot.pause(0.5)
            (ROOT / "docs/images/trend.svg").write_text(cockpit.export_screenshot(title="vramp"), encoding="utf-8")


def _copied(result: Result, started: datetime, version: str, scale: float) -> Result:
    """The run as if it had started then, on this version, with its rates scaled and nothing to doubt them."""
    (stage,) = result.stages
    rates = {name: value * scale for name, value in asdict(stage.throughput).items() if value is not None}
    environment = result.environment | {"engine": "vllm", "vllm_version": version}
    return replace(
        result,
        started_at=started.isoformat(),
        environment=environment,
        stages=[replace(stage, throughput=replace(stage.throughput, **rates), limited=False, inconclusive=None)],
    )


async def take_frontier(folder: Path) -> None:
    runs = []
    for name, args in VARIANTS.items():
        server = {"engine": "simulator", "served_model_name": "simulated-70b", "args": args}
        document = {"name": name, "server": server, "telemetry": "sim", "load": STEPS, "cost": {"gpu_hour": 2.1}}
        runs.append((name, await finish(build_profile(document, where="screenshot"))))
    (_, a), (_, b) = runs
    page = folder / "compare.html"
    page.write_text(compare_page(runs, [compare_runs(("quick", a), ("wide", b))]), encoding="utf-8")
    with chromium(folder, width=1280, height=1000) as browser:
        browser.open(page.as_uri())
        browser.screenshot(ROOT / "docs/images/frontier.png")


async def take_page(folder: Path) -> None:
    page = folder / "report.html"
    page.write_text(html_report(await finish(recipe())), encoding="utf-8")
    with chromium(folder, width=1280, height=1140) as browser:
        browser.open(page.as_uri())
        browser.run("document.querySelector('main > section').scrollIntoView()")
        browser.screenshot(ROOT / "docs/images/report.png")


if __name__ == "__main__":
    with scratch() as folder:
        asyncio.run(take())
        asyncio.run(take_acceptance())
        asyncio.run(take_monitor())
        asyncio.run(take_stall())
        asyncio.run(take_exporter())
        asyncio.run(take_sessions())
        asyncio.run(take_trend(folder / "trend"))
        if os.geteuid() == 0 and shutil.which("sshd"):
            asyncio.run(take_cluster(folder / "cluster"))
        if shutil.which("chromedriver"):
            asyncio.run(take_frontier(folder))
            asyncio.run(take_page(folder))
