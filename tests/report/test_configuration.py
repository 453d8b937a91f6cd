"""What differs in the configuration, and what makes two runs apples and pears."""

from typing import Any

import msgspec
import pytest

from loadgen.report.configuration import caveats, configuration_differences, unlikeness
from loadgen.schema.result import Result
from loadgen.schema.samples import GpuStatic
from loadgen.schema.shared import DataFile
from tests.metrics.served import run_of


def run(
    *,
    server: dict[str, Any] | None = None,
    load: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
) -> Result:
    profile = {"server": {"engine": "vllm"} | (server or {}), "load": {"endpoint": "chat", "isl": 512} | (load or {})}
    return run_of(profile=profile, environment={"engine": "vllm", "model": "some/model"} | (environment or {}))


def differences(a: Result, b: Result) -> list[tuple[str, str | None, str | None]]:
    return [(one.key, one.a, one.b) for one in configuration_differences(a, b)]


def test_versions_flags_and_variables_are_one_line_each() -> None:
    a = run(
        server={"args": {"max-num-seqs": 256}},
        environment={
            "vllm_version": "0.31.0",
            "server_command": ["vllm", "serve", "some/model", "--max-num-seqs", "256", "--async-scheduling"],
            "server_env": {"VLLM_ROCM_USE_AITER": "1"},
        },
    )
    b = run(
        server={"args": {"max-num-seqs": 512}},
        environment={"vllm_version": "0.32.0", "server_command": ["vllm", "serve", "--max-num-seqs=512"]},
    )
    assert differences(a, b) == [
        ("vllm_version", "0.31.0", "0.32.0"),
        ("server.args.max-num-seqs", "256", "512"),
        ("server.args.async-scheduling", "", None),
        ("server.env.VLLM_ROCM_USE_AITER", "1", None),
    ]


def test_what_differs_from_run_to_run_anyway_is_left_out() -> None:
    a = run(server={"port": 8000}, load={"seed": 1, "concurrency": [8]}, environment={"server_url": "http://box:8000"})
    b = run(server={"port": 9000}, load={"seed": 2, "concurrency": [8, 16]}, environment={"server_url": "http://box:1"})
    flags = [["vllm", "--port", port] for port in ("8000", "9000")]
    a, b = (
        msgspec.structs.replace(one, environment=one.environment | {"server_command": command})
        for one, command in zip((a, b), flags, strict=True)
    )
    assert differences(a, b) == []


def test_gpus_and_their_driver() -> None:
    def on(name: str, driver: str) -> Result:
        gpus = [GpuStatic(index=index, vendor="amd", name=name) for index in range(8)]
        meta = {"amd": {"vendor": "amd", "works": True, "meta": {"driver": driver, "library": "26.0"}}}
        return msgspec.structs.replace(run(), gpus=gpus, telemetry_meta=meta)

    found = differences(on("MI300X", "6.12"), on("MI355X", "6.14"))
    assert [key for key, _, _ in found] == ["gpus", "telemetry.amd.meta.driver"]
    assert "MI300X" in str(found[0][1]) and found[1][1:] == ("6.12", "6.14")


def test_settings_and_firmware_where_both_boxes_tell() -> None:
    def on(boost: str, mec: str) -> Result:
        gpus = [GpuStatic(index=0, vendor="amd", name="MI300X", firmware={"mec": mec})]
        return msgspec.structs.replace(run(environment={"settings": {"boost": boost}}), gpus=gpus)

    silent = msgspec.structs.replace(run(), gpus=[GpuStatic(index=0, vendor="amd", name="MI300X")])
    assert differences(on("on", "0xb1"), silent) == []
    assert differences(on("on", "0xb1"), on("on", "0xb1")) == []
    assert differences(on("on", "0xb1"), on("off", "0xb0")) == [
        ("gpu.firmware.mec", "0xb1", "0xb0"),
        ("host.boost", "on", "off"),
    ]


def test_durations_and_lists_are_readable() -> None:
    a, b = run(load={"duration": 60.0, "stops": ["a", "b"]}), run(load={"duration": 30.5})
    assert differences(a, b) == [("load.duration", "60", "30.5"), ("load.stops", "a b", None)]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (run(environment={"model": "another/model"}), "another model: some/model and another/model"),
        (run(environment={"engine": "simulator"}), "one of them is a simulator"),
        (run(load={"endpoint": "completions"}), "another load.endpoint: chat and completions"),
        (run(load={"ignore_eos": False}), "another load.ignore_eos: not set and False"),
        (run(load={"prefix": {"tokens": 64}}), "another load.prefix.tokens: not set and 64"),
        (run(load={"isl": "normal:512:64"}), "another load.isl: 512 and normal:512:64"),
    ],
)
def test_apples_and_pears(other: Result, why: str) -> None:
    assert list(unlikeness(run(), other)) == [why]


def file_of(path: str, sha256: str) -> DataFile:
    return DataFile(path=path, sha256=sha256, bytes=1, form="weka", records=9, left_out=0, is_sample=False)


def of_sessions(sha256: str = "c0ffee", *, seed: int = 1, path: str = "/a", **changes: object) -> Result:
    settings = {"data": path, "salt": "play", "start": "inside", "history": "recorded"} | changes
    result = run(load={"sessions": settings, "headers": {"session": "X-Session-ID"}, "seed": seed})
    return msgspec.structs.replace(result, data=file_of(path, sha256))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (of_sessions("beef"), ["other data: sha256 c0ffee and beef"]),
        (of_sessions(seed=2), ["another load.seed: 1 and 2, so other sessions begin, at other points"]),
        (of_sessions(start="beginning"), ["another load.sessions.start: inside and beginning"]),
        (of_sessions(max_gap=10.0), ["another load.sessions.max_gap: not set and 10"]),
        (of_sessions(path="/another/copy"), []),
    ],
)
def test_sessions_are_comparable_if_they_are_the_same_and_played_alike(other: Result, why: list[str]) -> None:
    assert list(unlikeness(of_sessions(), other)) == why


def test_another_number_of_tokens_is_a_matter_of_the_stages() -> None:
    assert list(unlikeness(run(), run(load={"isl": 1024}))) == []


def test_what_weakens_a_whole_run() -> None:
    plain = run()
    assert caveats(plain, "A") == []
    user = msgspec.structs.replace(plain.client, timestamps="user")
    found = caveats(msgspec.structs.replace(plain, state="server_died", reason="out of memory\nmore", client=user), "A")
    assert found == [
        "A is not complete: server died: out of memory",
        "A has no kernel timestamps: its latencies contain the client's own delay",
    ]
