"""Completion as a shell does it: the script for bash is run, the others are checked for what bash was given, too."""

import subprocess
from pathlib import Path

import pytest

from tui.cli.__main__ import main
from tui.cli.verbs import VERBS

_TRY = """
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_shtab_vramp 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    with pytest.MonkeyPatch.context() as patch:
        for shell in ("bash", "zsh", "fish"):
            with (folder / shell).open("w") as file:
                patch.setattr("sys.stdout", file)
                with pytest.raises(SystemExit, match="0"):
                    main(["completion", shell])
    return folder


@pytest.mark.parametrize(
    ("words", "offered", "not_offered"),
    [
        ("", {"run", "doctor", "completion", "simulator", "mine.toml"}, {"--json"}),
        ("run mi210", {"mi210-llama2-7b"}, {"simulator"}),
        ("run m", {"mine.toml", "mi300x-gpt-oss-120b"}, {"other.txt"}),
        ("run simulator --tele", {"--telemetry"}, {"--json"}),
        ("run simulator --telemetry a", {"auto", "amdsmi"}, {"off"}),
        ("run simulator --json ", {"other.txt"}, {"simulator"}),
        ("report 2026", {"20260101T000000Z-a"}, {"last"}),
        ("compare last ", {"last", "20260101T000000Z-a"}, {"simulator"}),
        ("bench ", {"serve", "latency", "throughput"}, {"run"}),
        ("bench serve --goodp", {"--goodput"}, {"--tokenizer"}),
        ("baseline s", {"save", "show"}, {"list"}),
    ],
)
def test_what_bash_offers(scripts: Path, tmp_path: Path, words: str, offered: set[str], not_offered: set[str]) -> None:
    (tmp_path / "runs" / "20260101T000000Z-a").mkdir(parents=True)
    for name in ("mine.toml", "other.txt"):
        (tmp_path / name).touch()
    command = ["bash", "--norc", "-c", f"source {scripts / 'bash'}; {_TRY}", "bash", "vramp", *words.split(" ")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    reported = set(done.stdout.splitlines())
    assert offered <= reported
    assert not not_offered & reported


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_profiles_and_runs_are_in_each_script(scripts: Path, shell: str) -> None:
    text = (scripts / shell).read_text()
    assert all(verb.name in text for verb in VERBS)
    assert text.count("_vramp_profiles") > 5 and text.count("_vramp_runs") > 5


@pytest.mark.parametrize(
    ("shell", "offered_next_to_the_commands"),
    [
        ("bash", "_shtab_vramp_pos_0_COMPGEN=_vramp_profiles"),
        ("zsh", "_shtab_vramp_commands() { _vramp_verbs; _vramp_profiles; }"),
        ("fish", """-n '_shtab_vramp_using; and test $_shtab_vramp_npos -eq 0' -ka "(_vramp_profiles)"\n"""),
    ],
)
def test_a_profile_in_the_place_of_a_command(scripts: Path, shell: str, offered_next_to_the_commands: str) -> None:
    _, _, behind_what_shtab_declares = (scripts / shell).read_text().rpartition("complete -c vramp -e")
    assert offered_next_to_the_commands in behind_what_shtab_declares


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "cmd.exe"])
    assert "bash" in capsys.readouterr().err
