"""Command lines: how a script's words, variables and containers become a profile."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import ProfileError
from loadgen.server.recipes.commands import import_command
from loadgen.server.recipes.imported import Imported, RecipeChoice


def imported(text: str, **defines: str) -> Imported:
    return import_command(text, RecipeChoice(defines=defines))


def server(text: str, **defines: str) -> dict[str, Any]:
    table: dict[str, Any] = imported(text, **defines).document["server"]
    return table


@pytest.mark.parametrize(
    ("words", "args"),
    [
        ("--max-model-len 8192", {"max-model-len": 8192}),
        ("--max_model_len=8192", {"max-model-len": 8192}),
        ("--max-model-len 32k", {"max-model-len": "32k"}),
        ("--gpu-memory-utilization 0.95", {"gpu-memory-utilization": 0.95}),
        ("--max-num-seqs 007", {"max-num-seqs": "007"}),
        ("-tp 8 -ep", {"tensor-parallel-size": 8, "enable-expert-parallel": True}),
        ("-cc.pass_config.fuse=True", {"compilation-config.pass_config.fuse": "True"}),
        ("-O3", {"optimization-level": 3}),
        ("--no-enable-prefix-caching", {"enable-prefix-caching": False}),
        ("--trust-remote-code --seed 7", {"trust-remote-code": True, "seed": 7}),
        ("--seed -1", {"seed": -1}),
        ("--seed 1 --seed 2", {"seed": 2}),
        ("""--speculative-config '{"method":"mtp"}'""", {"speculative-config": '{"method":"mtp"}'}),
        ("--lora-modules a=/a b=/b", {"lora-modules": ["a=/a", "b=/b"]}),
        ("--middleware a --middleware b", {"middleware": ["a", "b"]}),
        ("--flag-of-tomorrow --another 3", {"flag-of-tomorrow": True, "another": 3}),
    ],
)
def test_flags_are_taken_over(words: str, args: dict[str, Any]) -> None:
    table = server(f"vllm serve org/Model {words}")

    assert table["model"] == "org/Model"
    assert table["args"] == args


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m/M --seed 1",
        "$ vllm serve m/M --seed 1",
        "vllm serve \\\n  m/M \\\n  --seed 1  # as published",
        "/opt/venv/bin/vllm serve --seed 1 --model m/M > log 2>&1 &",
        "python3 -m vllm.entrypoints.openai.api_server --model m/M --seed 1",
        "python -m vllm.entrypoints.cli.main serve m/M --seed 1",
        "exec vllm serve 'm/M' --seed \"1\" | tee log",
        "cd /x && vllm serve m/M --seed 1; sleep 1",
        'bash -c "vllm serve m/M --seed 1"',
        "cat > run.sh <<EOF\nvllm serve m/M --seed 1\nEOF\n",
        "cat <<(x)\nvllm serve m/M --seed 1",
        "echo a\x0bb\fc\u2003d\nvllm serve m/M --seed 1",
        "ssh box <<-'END'\n\tvllm serve m/M --seed 1\n\tEND\n",
        "It's easy. This is how:\n\n    vllm serve m/M --seed 1\n\nand you're done",
        "# Title\nDon't\n```bash\npip install vllm\n```\n```sh\nvllm serve m/M --seed 1\n```\n",
        'CMD=(vllm serve m/M)\nCMD+=(--seed 1)\necho "${CMD[@]}"\n"${CMD[@]}" &',
        "start() {\n  vllm serve m/M --seed 1\n}\nstart",
        "if true; then\n  vllm serve m/M --seed 1\nfi",
    ],
)
def test_a_command_is_found(command: str) -> None:
    table = server(command)

    assert (table["engine"], table["model"], table["args"]) == ("vllm", "m/M", {"seed": 1})


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("A=1 vllm serve m", {"A": "1"}),
        ("env A=1 vllm serve m", {"A": "1"}),
        ("export A=1\nB=2\nvllm serve m", {"A": "1"}),
        ("A=1\nexport A\nvllm serve m", {"A": "1"}),
        ("export A=1 && export B=2 && vllm serve m", {"A": "1", "B": "2"}),
        ("export A='x y' B=\"$A z\"\nvllm serve m", {"A": "x y", "B": "x y z"}),
        ("export A=1\nunset A\nvllm serve m", {}),
        ("{ export A=1; }\nvllm serve m", {"A": "1"}),
        ("(export A=1)\nvllm serve m", {}),
        ("if [ $X ]; then export A=1; fi\nvllm serve m", {}),
        ("[ $X ] && export A=1\nvllm serve m", {}),
        ("vllm serve m\nexport A=1", {}),
        ("if [ $X ]; then export A=1; vllm serve m; fi", {"A": "1"}),
        ("declare -x A=1\nvllm serve m", {"A": "1"}),
        (
            "docker run -e A=1 --env=B=2 -eC=3=4 -e=D=5 vllm/vllm-openai --model m",
            {"A": "1", "B": "2", "C": "3=4", "D": "5"},
        ),
        ("A=1 bash -c 'vllm serve m'", {"A": "1"}),
    ],
)
def test_the_environment_is_what_the_script_certainly_sets(text: str, env: dict[str, str]) -> None:
    assert server(text).get("env", {}) == env


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("TP=4\nvllm serve m -tp $TP", {"tensor-parallel-size": 4}),
        ("vllm serve m -tp ${TP:-8}", {"tensor-parallel-size": 8}),
        ("TP=4\nvllm serve m -tp ${TP:-8}", {"tensor-parallel-size": 4}),
        ("vllm serve m -tp ${TP:-${N:-2}}", {"tensor-parallel-size": 2}),
        ("X='--seed 1 --block-size 64'\nvllm serve m $X", {"seed": 1, "block-size": 64}),
        ('X=()\nvllm serve m "${X[@]}" --seed 1', {"seed": 1}),
        ('X=(--seed 1)\nX+=(--block-size 64)\nvllm serve m "${X[@]}"', {"seed": 1, "block-size": 64}),
        ("X=a\nX+=b\nvllm serve m --dtype $X", {"dtype": "ab"}),
        ("X='$TP'\nvllm serve m --dtype \"$X\"", {"dtype": "$TP"}),
        ("vllm serve m --quantization '$TP'", {"quantization": "$TP"}),
    ],
)
def test_variables_have_the_values_of_the_script(text: str, args: dict[str, Any]) -> None:
    assert server(text)["args"] == args


@pytest.mark.parametrize("written", ["$TP", "$((TP * 2))", "$(nproc)", "`nproc`", "${TP%x}", "${TP:?}", "$1"])
def test_a_value_that_is_not_known_is_left_out_and_said(written: str) -> None:
    found = imported(f"vllm serve m --seed 1 -tp {written} --block-size={written}")

    assert found.document["server"]["args"] == {"seed": 1}
    assert sum(written in remark for remark in found.left_out) == 2


def test_a_definition_gives_a_variable_its_value() -> None:
    assert server("vllm serve $MODEL -tp $TP", MODEL="m/M", TP="8")["args"] == {"tensor-parallel-size": 8}
    with pytest.raises(ProfileError, match=r"no model.*MODEL.*--define"):
        imported("vllm serve $MODEL")


def test_what_a_condition_may_change_is_said() -> None:
    found = imported(
        'ARGS=(--seed 1)\nif [ "$FAST" = true ]; then\n  ARGS+=(--async-scheduling)\n  export A=1\n  OTHER=2\nfi\n'
        'vllm serve m "${ARGS[@]}"'
    )

    assert found.document["server"]["args"] == {"seed": 1}
    remark = next(remark for remark in found.left_out if "condition" in remark)
    assert "ARGS (line 3)" in remark
    assert "A (line 4)" in remark
    assert "OTHER" not in remark


def test_port_host_and_names_go_where_they_belong() -> None:
    found = imported("vllm serve m --port 8080 --host 0.0.0.0 --served-model-name a b")

    assert found.document["server"] == {"engine": "vllm", "model": "m", "served_model_name": "a", "port": 8080}
    assert any("--host 0.0.0.0" in remark for remark in found.left_out)


SECRET = "hf_abcdefghijklmnopqrstuvwx"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve m --api-key topsecretvalue",
        "vllm serve m --api-key=topsecretvalue",
        f"HF_TOKEN={SECRET} vllm serve m",
        f"export HUGGING_FACE_HUB_TOKEN={SECRET}\nvllm serve m",
        f"docker run -e HF_TOKEN={SECRET} vllm/vllm-openai --model m",
        f"docker run --env HF_TOKEN={SECRET} vllm/vllm-openai --model m",
        f"docker run -eHF_TOKEN={SECRET} vllm/vllm-openai --model m",
        f"vllm serve m --hf-token {SECRET}",
        'vllm serve m --kv-transfer-config \'{"password": "topsecretvalue"}\'',
        "export PROXY=http://me:topsecretvalue@proxy:1\nvllm serve m",
    ],
)
def test_secrets_are_never_taken_over(text: str) -> None:
    found = imported(text)

    assert SECRET not in repr(found)
    assert "topsecretvalue" not in repr(found)
    assert any(", a secret" in remark for remark in found.left_out)


def test_a_container_keeps_its_options() -> None:
    found = imported(
        "docker run -d --rm --name v --runtime nvidia --gpus all --ipc=host --shm-size 16g --ulimit memlock=-1 \\\n"
        "  -v $HOME/.cache/huggingface:/root/.cache/huggingface -v $(pwd):/work -p 8000:8000 --cap-add=SYS_PTRACE \\\n"
        "  --privileged vllm/vllm-openai:v0.32.0 --model m/M -tp 2"
    )

    table = found.document["server"]
    assert (table["engine"], table["platform"], table["args"]) == ("docker", "cuda", {"tensor-parallel-size": 2})
    assert table["docker"] == {
        "image": "vllm/vllm-openai:v0.32.0",
        "gpus": "all",
        "ipc": "host",
        "shm_size": "16g",
        "ulimits": ["memlock=-1"],
        "mounts": ["~/.cache/huggingface:/root/.cache/huggingface"],
        "capabilities": ["SYS_PTRACE"],
        "serve": [],
    }
    for option in ("--privileged", "--runtime", "$(pwd):/work"):
        assert any(option in remark for remark in found.left_out)


@pytest.mark.parametrize(
    ("options", "arguments", "port"),
    [
        ("-p 8001:8000", "", 8001),
        ("-p8001:8000/tcp -p 9400:9400", "", 8001),
        ("--publish 127.0.0.1:8001:9000", "--port 9000", 8001),
        ("-p 9400:9400", "--port 9000", 9000),
        ("-p 8000", "", None),  # any port of the host
        ("-p 99999:8000", "", None),
        ("-p 8000-8010:8000-8010", "", None),
    ],
)
def test_a_published_port_is_the_servers(options: str, arguments: str, port: int | None) -> None:
    assert server(f"docker run {options} vllm/vllm-openai:x --model m {arguments}").get("port") == port


@pytest.mark.parametrize(
    ("text", "serve"),
    [
        ("docker run rocm/vllm-dev:x vllm serve m", None),
        ("docker run rocm/vllm-dev:x bash -c 'vllm serve m'", None),
        ("docker run rocm/vllm-dev:x python -m vllm.entrypoints.openai.api_server --model m", None),
        ("docker run vllm/vllm-openai:x m", []),
        ("docker run --entrypoint vllm vllm/vllm-openai:x serve m", []),
        ("podman run vllm/vllm-openai:x --model m", []),
    ],
)
def test_a_container_starts_the_server_as_the_command_did(text: str, serve: list[str] | None) -> None:
    docker = server(text)["docker"]

    assert docker.get("serve") == serve
    assert docker.get("executable") == ("podman" if text.startswith("podman") else None)


@pytest.mark.parametrize(("context", "lengths"), [("512", (256, 128)), ("1k", (500, 250)), ("-1", (1024, 256))])
def test_the_load_fits_into_the_context(context: str, lengths: tuple[int, int]) -> None:
    load = imported(f"vllm serve m --max-model-len {context}").document["load"]
    assert (load["isl"], load["osl"]) == lengths


def test_amd_devices_say_the_platform() -> None:
    table = server("docker run --device=/dev/kfd --device /dev/dri --group-add video rocm/vllm:x vllm serve m")

    assert table["platform"] == "rocm"
    assert table["docker"]["devices"] == ["/dev/kfd", "/dev/dri"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("numactl -N 0 vllm serve m", "what starts the server: numactl -N 0"),
        ("env -i A=1 vllm serve m", "what starts the server: env -i"),
        ("kubectl exec pod -- vllm serve m", "what starts the server: kubectl exec pod --"),
        ("srun -N1 bash -c 'vllm serve m'", "what starts the server: srun -N1"),
        ("vllm serve m --nnodes 2 --node-rank 0 --master-addr x", "several machines"),
        ("vllm serve m\nvllm serve other", "other servers"),
        ("vllm serve m stray", "stray"),
        ("export CACHE=$ROOT/x\nvllm serve m", "CACHE"),
    ],
)
def test_what_has_no_place_in_a_profile_is_said(text: str, word: str) -> None:
    assert any(word in remark for remark in imported(text).left_out)


WRAPPERS = st.sampled_from(
    ["sudo", "sudo -E", "numactl -N 0", "timeout 30", "nice -n 5", "ssh box", "env A=1", "env -i"]
)
STARTS = st.sampled_from(
    [
        "docker run vllm/vllm-openai --model m",
        "docker run rocm/vllm vllm serve m",
        "docker run rocm/vllm bash -c 'vllm serve m'",
        "vllm serve m",
    ]
)


@given(st.lists(WRAPPERS, max_size=4), STARTS, st.booleans())
def test_every_word_in_front_is_taken_over_or_listed(wrappers: list[str], start: str, nested: bool) -> None:
    before = " ".join(wrappers)
    nested = nested and "'" not in start
    found = imported(f"{before} bash -c '{start}'" if nested else f"{before} {start}")
    listed = " ".join(found.left_out)
    for words in wrappers:
        if words == "env A=1":
            assert "A" in found.document["server"].get("env", {}) or "not passed on to the container: A" in listed
        else:
            assert words in listed


def test_a_container_has_the_variables_that_docker_passes_on() -> None:
    found = imported("export A=1 B=2\nC=3 docker run -e A -e C -e D -e E=5 vllm/vllm-openai --model m")
    assert found.document["server"]["env"] == {"A": "1", "C": "3", "E": "5"}
    assert found.left_out == [
        "--env D: it comes from the environment; set server.env.D",
        "variables that are not passed on to the container: B",
    ]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("python -m sglang.launch_server --model m", "sglang"),
        ("trtllm-serve m", "trtllm"),
        ("docker run lmsysorg/sglang --model m", "sglang"),
        ("echo vllm serve m", "no `vllm serve`"),
        ("vllm serve m --port '80", "line 1: a quote or a parenthesis that is not closed"),
        ("", "no `vllm serve`"),
        ("A=x\n" + "A=$A$A\n" * 40 + "vllm serve m $A", "grow beyond"),
        ("A=(x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + "vllm serve m", "grow beyond"),
    ],
)
def test_what_is_no_server_of_vllm_is_refused(text: str, word: str) -> None:
    with pytest.raises(ProfileError, match=word):
        imported(text)
