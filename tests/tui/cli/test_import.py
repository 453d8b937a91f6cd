"""`vramp import`: files, URLs, standard input, and where the profile goes."""

import io
import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from loadgen.errors import ProfileError, ResultError
from loadgen.profile.document import load_profile
from loadgen.server.recipes.imported import RecipeChoice
from loadgen.server.recipes.read import MAX_BYTES
from tests.tui.cli.commands import verb
from tui.cli.importing import fetched, file_url

RECIPES = Path(__file__).parents[2] / "server" / "recipes"
import_profile = verb("import")
COMMAND = "export HF_TOKEN=hf_abcdefghijklmnopqrstuvwx\nvllm serve org/Model -tp $TP --seed 1\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "start.sh"
    path.write_text(COMMAND)
    return path


def test_the_profile_goes_to_stdout_and_what_is_missing_to_stderr(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert import_profile([str(script), "--hardware", "mi300x"]) == 0

    written, said = capsys.readouterr()
    assert tomllib.loads(written)["server"]["args"] == {"seed": 1}
    for text in (written, said):
        assert "$TP" in text
        assert "HF_TOKEN" in text
        assert "hf_abc" not in text


def test_a_profile_is_written_under_its_name_and_never_over_another(script: Path, tmp_path: Path) -> None:
    words = [str(script), "--hardware", "mi300x", "--define", "TP=8", "-o", str(tmp_path)]
    assert import_profile(words) == 0
    path = tmp_path / "mi300x-model.toml"
    assert load_profile(path).server.args == {"tensor-parallel-size": 8, "seed": 1}

    path.write_text("mine")
    with pytest.raises(ProfileError, match="--force"):
        import_profile(words)
    assert path.read_text() == "mine"
    assert import_profile([*words, "--force"]) == 0
    assert load_profile(path).server.model == "org/Model"


def test_standard_input_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(COMMAND.encode())))

    assert import_profile(["-"]) == 0

    assert "from standard input" in capsys.readouterr().out


def test_a_file_of_a_checkout_has_its_commit(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=n", "-c", "user.email=e")
        return subprocess.check_output(["git", "-C", str(script.parent), *identity, *words], text=True).strip()

    git("init", "-q")
    git("add", "start.sh")
    git("commit", "-qm", "x")

    import_profile([str(script)])

    assert f"at commit {git('rev-parse', 'HEAD')}" in " ".join(capsys.readouterr().out.replace("\n# ", " ").split())

    script.write_text(f"{script.read_text()}# changed since\n")
    import_profile([str(script)])
    assert "at commit" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["/nowhere/x.yaml"], "cannot be read"),
        (["/tmp"], "cannot be read"),
        (["/dev/zero"], "larger than 1 MiB"),
        (["x\0y"], "cannot be read"),
        (["http://example.org/x.yaml"], "https"),
        (["ftp://example.org/x.yaml"], "https"),
        (["https://[x"], "cannot be fetched"),
        (["x", "--define", "TP"], "--define TP"),
    ],
)
def test_what_cannot_be_read_is_usage(words: list[str], word: str) -> None:
    with pytest.raises(ProfileError, match=word):
        import_profile(words)


def test_a_profile_that_cannot_be_written_is_no_usage(script: Path, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="cannot be written"):
        import_profile([str(script), "-o", str(tmp_path / "no" / "such.toml")])


@pytest.mark.parametrize(
    ("url", "choice", "expected"),
    [
        (
            "https://github.com/vllm-project/recipes/blob/main/models/a/b.yaml",
            RecipeChoice(),
            "https://raw.githubusercontent.com/vllm-project/recipes/main/models/a/b.yaml",
        ),
        ("https://recipes.vllm.ai/a/b", RecipeChoice(), "https://recipes.vllm.ai/a/b.json"),
        (
            "https://recipes.vllm.ai/a/b-1.5?x#y",
            RecipeChoice(hardware="h200"),
            "https://recipes.vllm.ai/a/b-1.5/hw/h200.json",
        ),
        (
            "https://recipes.vllm.ai/a/b.json",
            RecipeChoice(hardware="h200", strategy="single_node_tep"),
            "https://recipes.vllm.ai/a/b/hw/h200/strategies/single_node_tep.json",
        ),
        (
            "https://recipes.vllm.ai/a/b/hw/h200.json",
            RecipeChoice(hardware="h200"),
            "https://recipes.vllm.ai/a/b/hw/h200.json",
        ),
        ("https://example.org/x.sh", RecipeChoice(), "https://example.org/x.sh"),
    ],
)
def test_a_page_stands_for_its_file(url: str, choice: RecipeChoice, expected: str) -> None:
    assert file_url(url, choice) == expected


def transport(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.MockTransport:
    return httpx.MockTransport(answer)


def test_a_url_is_fetched_over_https_only() -> None:
    def moved(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"Location": "http://example.org/plain"})

    assert fetched("https://x/y", transport(lambda _: httpx.Response(200, content=b"vllm serve m"))) == b"vllm serve m"
    with pytest.raises(ProfileError, match="https"):
        fetched("https://x/y", transport(moved))


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (lambda _: httpx.Response(404), "HTTP 404"),
        (lambda _: httpx.Response(200, content=b"x" * (MAX_BYTES + 1)), "larger than 1 MiB"),
        (lambda _: httpx.Response(302, headers={"Location": "/again"}), "cannot be fetched"),
        (lambda _: httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=b"no gzip"), "cannot be fetched"),
    ],
)
def test_what_cannot_be_fetched_is_refused(answer: Callable[[httpx.Request], httpx.Response], word: str) -> None:
    with pytest.raises(ProfileError, match=word):
        fetched("https://x/y", transport(answer))


def test_a_raw_url_names_its_commit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    commit = "8959cf64189c71d36e11c6a30335f923f261b1f7"
    document = json.loads((RECIPES / "recipes.json").read_text())["recipes"][0]["recipe"]
    monkeypatch.setattr("tui.cli.importing.fetched", lambda _, **__: json.dumps(document).encode())

    url = f"https://github.com/vllm-project/recipes/blob/{commit}/models/a/b.yaml"
    assert import_profile([url, "--hardware", "h200"]) == 0

    assert f"at commit {commit}" in " ".join(capsys.readouterr().out.replace("\n# ", " ").split())
