"""Secrets out of documents, texts and command lines: by name, by value and by form."""

import ast
import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies

from loadgen.masking import learn, mask_file, masked, masked_command, masked_text
from loadgen.schema.shared import Diagnosis

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--api-key", "sk-1"], ["--api-key", "***"]),
        (["--api-key", "sk-1", "sk-2", "--dtype", "auto"], ["--api-key", "***", "***", "--dtype", "auto"]),
        (["--api-key=sk-1"], ["--api-key=***"]),
        (["--hf-token", "hf_x"], ["--hf-token", "***"]),
        (["--max-num-batched-tokens", "8192"], ["--max-num-batched-tokens", "8192"]),
        (["--max-num-batched-tokens=8k"], ["--max-num-batched-tokens=8k"]),
        (["--tokenizer", "org/m"], ["--tokenizer", "org/m"]),
        (["--ssl-keyfile", "/etc/key.pem"], ["--ssl-keyfile", "/etc/key.pem"]),
        (["-e", "HF_TOKEN=hf_x", "image"], ["-e", "HF_TOKEN=***", "image"]),
        (["--model", "https://user:pw@host/m?token=t&a=1"], ["--model", "https://***@host/m?token=***&a=1"]),
        (["--kv-transfer-config", '{"api_key": "x", "n": 1}'], ["--kv-transfer-config", '{"api_key": "***", "n": 1}']),
        (["--header", "Authorization: Bearer abc"], ["--header", "Authorization: Bearer ***"]),
        (["vllm", "serve", "m", "--port", "8000"], ["vllm", "serve", "m", "--port", "8000"]),
    ],
)
def test_secrets_in_argv(argv: list[str], shown: list[str]) -> None:
    assert masked_command(argv) == shown


def test_secrets_in_the_environment() -> None:
    environment = {
        "HF_TOKEN": "hf_x",
        "VLLM_API_KEY": "1234",
        "MY_PASSWORD": "p",
        "EMPTY_SECRET": "",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_MAX_TOKENS_PER_EXPERT": "65536",
        "HTTPS_PROXY": "http://me:pw@proxy:3128",
        "PATH": "/bin",
    }
    assert masked(environment) == {
        "HF_TOKEN": "***",
        "VLLM_API_KEY": "***",
        "MY_PASSWORD": "***",
        "EMPTY_SECRET": "",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_MAX_TOKENS_PER_EXPERT": "65536",
        "HTTPS_PROXY": "http://***@proxy:3128",
        "PATH": "/bin",
    }


@pytest.mark.parametrize(
    "name",
    ["GITHUB_PAT", "DB_PWD", "pwd", "PGPASSWORD", "SSH_PASSPHRASE", "apiKey", "X-Api-Key", "Cookie", "accessToken"],
)
def test_names_of_secrets(name: str) -> None:
    assert masked({name: "v"}) == {name: "***"}
    assert masked_command([f"--{name}", "v"])[1] == "***"


@pytest.mark.parametrize(
    "name",
    ["PWD", "OLDPWD", "PATH", "PATTERN", "compat", "KEYBOARD", "GIT_AUTHOR_NAME", "SSH_AUTH_SOCK", "HF_TOKEN_PATH"],
)
def test_names_of_what_is_no_secret(name: str) -> None:
    assert masked({name: "v"}) == {name: "v"}


def test_nested_tables_and_json_in_a_string() -> None:
    table = {"kv_connector": "C", "extra": [{"password": 'p"q', "port": 1}], "password": 1234}
    clean = {"kv_connector": "C", "extra": [{"password": "***", "port": 1}], "password": "***"}
    assert masked({"kv-transfer-config": table}) == {"kv-transfer-config": clean}
    assert masked({"kv-transfer-config": json.dumps(table)}) == {"kv-transfer-config": json.dumps(clean)}
    assert masked_command([f"--kv-transfer-config={json.dumps(table)}"]) == [
        f"--kv-transfer-config={json.dumps(clean)}"
    ]


def test_numbers_in_a_list_of_passwords_are_masked() -> None:
    assert masked({"passwords": [1234, 5.5], "counts": [1, 2]}) == {"passwords": ["***", "***"], "counts": [1, 2]}


def test_table_under_a_secret_name_is_masked() -> None:
    assert masked({"credentials": {"user": "u", "hash": ["h"]}}) == {"credentials": {"user": "***", "hash": ["***"]}}


def test_struct_without_secrets_is_unchanged() -> None:
    diagnosis = Diagnosis("gpu", "title", ("HF_TOKEN=abc", "plain"), "remedy")
    assert masked(diagnosis) == Diagnosis("gpu", "title", ("HF_TOKEN=***", "plain"), "remedy")
    plain = Diagnosis("gpu", "title", ("plain",), "remedy")
    assert masked(plain) is plain


def test_too_deep_document_is_masked() -> None:
    document: list[object] = []
    for _ in range(100_000):
        document = [document]
    shown, depth = masked(document), 0
    while isinstance(shown, list):
        (shown,), depth = shown, depth + 1
    assert shown == "***" and depth < 100


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://host:8000/v1 at 10@5", "http://host:8000/v1 at 10@5"),
        ("KeyError: 'model' in key order", "KeyError: 'model' in key order"),
        ("basic usage of tokens", "basic usage of tokens"),
        (
            "max_num_batched_tokens=8192, skip_tokenizer_init=False",
            "max_num_batched_tokens=8192, skip_tokenizer_init=False",
        ),
        ("api_key=None, auth: on", "api_key=None, auth: on"),
        ("------Inter-token Latency------", "------Inter-token Latency------"),
        ("vramp run [--set KEY=VALUE]", "vramp run [--set KEY=VALUE]"),
        ("{'model': 'm', 'api_key': ['a b', 'c'], 'n': 1}", "{'model': 'm', 'api_key': ['***', '***'], 'n': 1}"),
        ("args: --api-key sk-1 --port 1", "args: --api-key *** --port 1"),
        ("export HF_TOKEN=hf_x; go", "export HF_TOKEN=***; go"),
        ('api_key = "a b"', 'api_key = "***"'),
        ('"password": "a\\\nb"', '"password": "***"'),
        ('{"password": "abc d', '{"password": "***'),
        ("password='abc d\\", "password='***"),
        ('{"password": "', '{"password": "'),
        ("GET /?token=a&x=1 HTTP/1.1", "GET /?token=***&x=1 HTTP/1.1"),
        ("postgres://u:p@host/db", "postgres://***@host/db"),
        ("proxy=http://u:p@ss@host:1 to x@y", "proxy=http://***@host:1 to x@y"),
        ('{"url":"http://host","mail":"a@b"}', '{"url":"http://host","mail":"a@b"}'),
        ("X-API-Key: abc", "X-API-Key: ***"),
        ("Authorization: Basic dTpw", "Authorization: Basic ***"),
        ("authorization: abc", "authorization: ***"),
        ("api_key: sk-abc", "api_key: ***"),
        ("INFO using HF_TOKEN: hf_x, port: 1", "INFO using HF_TOKEN: ***, port: 1"),
        (
            "env:\n  - client_secret: a\n    password: b c\n    token: d",
            "env:\n  - client_secret: ***\n    password: ***\n    token: ***",
        ),
        ("accessToken: a, X-Auth: b", "accessToken: ***, X-Auth: ***"),
        ("> Cookie: a=b; c=d", "> Cookie: ***"),
        ("the token is hf_abcdefghijklmnopqrstuvwxyz", "the token is ***"),
    ],
)
def test_secrets_in_a_text(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked_text(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Inter-token: slow",
        "Time to First Token: slow",
        "Token: slow",
        "per-token: 5 ms",
        "Total input tokens: 1024",
        "max_tokens: 16, pad_token: </s>, eos-token: <|end|>",
        "KeyError: model.layers.0",
        "unexpected key: model.layers.0, missing_keys: lm_head.weight",
        "cache_key: model-abc, kv_cache_dtype: fp8",
        "keys: q quits, key: x, auth: on, passed: yes",
        "api_key: None, api_key_env: VLLM_API_KEY",
        "secret://vault/a, monkey: x, author: me, tokenizer: org/m",
    ],
)
def test_a_colon_after_a_word_of_prose_masks_nothing(text: str) -> None:
    assert masked_text(text) == text


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@given(strategies.binary(max_size=5), strategies.binary(max_size=5))
def test_a_known_value_is_masked_in_base64(encode: Callable[[bytes], bytes], before: bytes, after: bytes) -> None:
    secret = b"a key/of+service? 1"
    learn({"SERVICE_KEY": secret.decode()})
    shown = masked_text(encode(before + secret + after).decode())
    assert "***" in shown and len(shown) < 3 + 12 + 12


def test_known_value_is_masked_in_urls_and_hexadecimal() -> None:
    learn({"SERVICE_KEY": "a key/of+service? 1"})
    for shown in ("a%20key%2Fof%2Bservice%3F%201", "a+key%2fof%2bservice%3f+1", "a%20key/of%2Bservice%3F%201"):
        assert masked_text(f"GET /?q={shown}&n=1") == "GET /?q=***&n=1"
    assert masked_text(b"a key/of+service? 1".hex()) == "***"


@pytest.mark.parametrize("chars", [(1 << 20) - 1, 1 << 20, 5 << 19])
def test_a_line_too_long_for_a_log_is_masked_whole(tmp_path: Path, chars: int) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"first\n{'x' * chars}\nlast password=abc\n{'x' * chars}")
    mask_file(log)
    assert log.read_text().startswith("first\n***\nlast password=***\n")
    assert log.stat().st_size < 50 or chars < 1 << 20


def test_known_value_is_masked_everywhere() -> None:
    learn({"server": {"env": {"MY_PAT": "known/value 1"}, "args": {"c": '{"secret": "known value 2"}'}}})
    learn({"url": "http://user:known-value-3@host/", "MAX_TOKENS": "12345678", "ACCESS_KEY": "short"})
    learn({"PRIVATE_KEY": "-----BEGIN KEY-----\nbase64base64\n-----END KEY-----"})
    text = "known/value 1, known%2Fvalue%201, known value 2, known-value-3, 12345678, short, base64base64"
    assert masked_text(text) == "***, ***, ***, ***, 12345678, short, ***"
    assert masked({"known value 2": ["x known value 2 y"]}) == {"***": ["x *** y"]}


def test_secrets_in_odd_documents_are_learned() -> None:
    secret = "\udcff" * 12
    learn({"API_KEY": secret, "args": "[" * 900 + '"x"' + "]" * 900})
    assert masked_text(f"started with {secret}") == "started with ***"


def test_lists_without_an_end_take_no_time() -> None:
    text = "key=[" * 50_000 + " password=abc"
    assert masked_text(text) == text.replace("abc", "***")


def test_no_words_of_our_own_are_taken_for_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.masking._known", [])  # other tests of this process have secrets such as `canary`

    def words_in(source: Path) -> set[str]:
        nodes = list(ast.walk(ast.parse(source.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        literals = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
        return {node.value for node in literals if isinstance(node.value, str)}

    sources = [*ROOT.glob("loadgen/report/**/*.py"), *ROOT.glob("tui/**/*.py")]
    assert len(sources) > 50
    assert [words for source in sources for words in words_in(source) if masked_text(words) != words] == []


@given(strategies.text(), strategies.text(max_size=20))
def test_masking_again_changes_nothing(text: str, secret: str) -> None:
    for line in (
        text,
        f"{text} --api-key {secret}",
        json.dumps({"token": secret, "x": text}),
        f"token={secret} {text}",
    ):
        once = masked_text(line)
        assert masked_text(once) == once


@given(strategies.text(min_size=1).filter(lambda value: "\x00" not in value))
def test_no_value_under_a_secrets_name_is_left(value: str) -> None:
    marked = f"canary-{value}"
    shown = json.dumps(
        [masked({"a": [{"api_key": [marked]}]}), masked_command(["--api-key", marked, f"PASSWORD={marked}"])]
    )
    assert "canary" not in shown


def test_secrets_in_a_body_however_deep() -> None:
    body = {
        "router": {"api_key": "sk-1", "note": "Bearer abc", "tries": 3},
        "auth": ["a", "b"],
        "stop_token_ids": [1, 2],
        "top_k": 5,
        "prompt_token": "",
    }
    assert masked(body) == {
        "router": {"api_key": "***", "note": "Bearer ***", "tries": 3},
        "auth": ["***", "***"],
        "stop_token_ids": [1, 2],
        "top_k": 5,
        "prompt_token": "",
    }


def test_the_padding_of_a_histogram_is_no_value() -> None:
    """Three letters like `key` turn up by chance in base64, and a masked histogram cannot be read."""
    text = "HISTFAAAAC94nJNpmSzMwMDAxAABzFCaEUoz2X+AsCoWvIKEA/KeYabcd12=="
    assert masked({"hdr": text}) == {"hdr": text}
    assert masked(["api_key=secret=="]) == ["api_key=***"]
