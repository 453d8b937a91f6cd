"""`vramp check` as scripts see it."""

import json
import socket
from pathlib import Path

import pytest

from loadgen.profile.document import load_document, variant_names
from tui.cli.__main__ import main

PROFILES = sorted((Path(__file__).parents[3] / "profiles").glob("*.toml"))
OLD = """
[server]
engine = "vllm"
model = "org/model"
args.swap-space = 16
env.VLLM_USE_V1 = "1"
[variants.fine]
unset = ["server.args.swap-space", "server.env.VLLM_USE_V1"]
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "old.toml"
    path.write_text(OLD)
    return str(path)


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["check", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().out


def test_what_blocks_is_exit_code_3_and_says_what_to_do(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = check(capsys, profile, "--installation", "0.32.0")
    assert code == 3
    assert out.startswith("blocks unknown-flag: ")
    assert "swap-space" in out and "fix: " in out
    assert "warns  unknown-variable: " in out and "VLLM_USE_V1" in out


def test_json_is_for_scripts(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = check(capsys, profile, "--installation", "0.32.0", "--json")
    found = json.loads(out)
    assert code == 3
    assert (found[0]["id"], found[0]["severity"]) == ("unknown-flag", "blocks")


def test_a_variant_is_checked_as_it_would_run(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = check(capsys, profile, "--installation", "0.32.0", "--variant", "fine")
    assert code == 0
    assert "swap-space" not in out


def test_a_version_that_is_not_recorded(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", profile, "--installation", "0.1"])
    assert ended.value.code == 3
    assert "there are: 0.32.0" in capsys.readouterr().err


def test_a_port_that_is_taken_blocks_here(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, out = check(capsys, "simulator", "--set", f"server.port={taken.getsockname()[1]}")
    assert code == 3
    assert out.startswith("blocks port-taken: ")


SHIPPED = [(path, variant) for path in PROFILES for variant in [None, *variant_names(load_document(path))]]


@pytest.mark.parametrize(("path", "variant"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_no_shipped_profile_is_blocked(path: Path, variant: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--variant", variant] if variant is not None else []
    code, out = check(capsys, str(path), "--installation", "0.32.0", "--json", *chosen)
    assert (code, [finding["id"] for finding in json.loads(out) if finding["severity"] == "blocks"]) == (0, [])
