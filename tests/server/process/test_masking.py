import pytest

from loadgen.server.process.masking import masked_command, masked_document, masked_environment, masked_text


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
    assert masked_environment(environment) == {
        "HF_TOKEN": "***",
        "VLLM_API_KEY": "***",
        "MY_PASSWORD": "***",
        "EMPTY_SECRET": "",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_MAX_TOKENS_PER_EXPERT": "65536",
        "HTTPS_PROXY": "http://***@proxy:3128",
        "PATH": "/bin",
    }


def test_plain_text_stays() -> None:
    assert masked_text("http://host:8000/v1 at 10@5") == "http://host:8000/v1 at 10@5"


def test_secrets_in_a_body_however_deep() -> None:
    body = {
        "router": {"api_key": "sk-1", "note": "Bearer abc", "tries": 3},
        "auth": ["a", "b"],
        "stop_token_ids": [1, 2],
        "top_k": 5,
        "prompt_token": "",
    }
    assert masked_document(body) == {
        "router": {"api_key": "***", "note": "Bearer ***", "tries": 3},
        "auth": ["***", "***"],
        "stop_token_ids": [1, 2],
        "top_k": 5,
        "prompt_token": "",
    }
