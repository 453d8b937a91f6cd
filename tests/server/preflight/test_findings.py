"""What every shipped profile gets on every described box, compared with the reviewed list in `findings.txt`.

    python -m tests.server.preflight.test_findings   # rewrites the list; then read what changed

Only what depends on profile and box is in it: not whether a model, a port, a container program or a server is here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from loadgen.plan.from_profile import stages_of
from loadgen.profile.document import load_document, load_profile, variant_names
from loadgen.schema.finding import ORPHANED, by_severity
from loadgen.server.preflight import box_gpus
from loadgen.server.preflight.check import judged
from loadgen.server.preflight.facts import Setup
from loadgen.server.vllm.installation import recorded_versions
from loadgen.vendors import Platform, platform_here
from tests.server.preflight.boxes import DESCRIBED, described_box, setup_of

LIST = Path(__file__).with_name("findings.txt")
PROFILES = sorted((Path(__file__).parents[3] / "profiles").glob("*.toml"))
VLLM = recorded_versions()[-1]
OF_THIS_MACHINE = (
    *("port-taken", "no-container-program", "server-unknown", "disk-space", "shared-memory"),
    *(ORPHANED, "server-unknown", "state-folder", "leftover-server"),
    *("model-missing", "model-incomplete", "model-not-cached", "model-not-kept", "model-download", "hub-token-missing"),
    "unlike-publication",  # every recipe, by its version
)
HEADER = f"""\
# What the preflight says of each shipped profile on each described box (described/), with vLLM {VLLM}. A variant has a
# line where it is told something else than its profile. Written by: python -m tests.server.preflight.test_findings
#
# Reviewed line by line; what is not plain:
# - streams-queue: an MI210 has less than 70 GiB, so vLLM holds 256 sequences, and these variants send 1,000 at once.
# - weights-too-large: 65 GB of gpt-oss-120b, or 72 GB of a 70B in FP8, on one MI210 (64 GiB); 812 GB of 405B in BF16 on
#   eight of its size; 685 GB of DeepSeek-R1 on eight H100 (80 GiB). With expert parallelism the rule is silent.
# - memory-above-aiter is of MI300X: the publication of the MI355X profiles ran with 0.95 there.
# - quick-reduce-nothing: the publication sets it on one GPU.
# - aiter-mha-grouped: what its publication warns of; gpt-oss has attention sinks, so vLLM does not take ROCM_ATTN.
# - not-checked: what needs GPUs of the recipe's platform, where there are none; the variables of an image that is not
#   here; the model of vllm-cpu-tiny, which is made on the spot.
# - aiter-flash-elsewhere: recipes of MI300X and MI355X name AITER's flash attention, which vLLM refuses on MI210.
"""


# Read once for all boxes.
_document, _profile = cache(load_document), cache(load_profile)


def lines_of(box_name: str, folder: Path) -> Iterator[str]:
    # What models this machine has must not matter.
    environ = {"PATH": str(folder / "bin"), "HF_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    box = described_box(folder, box_name, environ=environ)

    @cache  # the GPUs are read once for all profiles
    def setup(platform: Platform) -> Setup:
        return setup_of(box, _profile(PROFILES[0], variant=None), platform, vllm=VLLM)

    def reported(path: Path, variant: str | None) -> str:
        profile = _profile(path, variant=variant)
        known = setup(profile.server.platform or platform_here(box.dev))
        findings = judged(msgspec.structs.replace(known, profile=profile, plan=stages_of(profile)))
        shown = [finding for finding in by_severity(findings) if finding.id not in OF_THIS_MACHINE]
        return ", ".join(f"{finding.severity} {finding.id}" for finding in shown) or "-"

    for path in PROFILES:
        own = reported(path, None)
        yield f"{box_name:7} {path.stem}: {own}"
        for variant in variant_names(_document(path)):
            if (other := reported(path, variant)) != own:
                yield f"{box_name:7} {path.stem}+{variant}: {other}"


@pytest.mark.parametrize("box_name", DESCRIBED)
def test_every_profile_has_the_reviewed_findings(
    box_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    # Every profile would look through the processes of this machine, which are in no list.
    monkeypatch.setattr(box_gpus, "find_servers", lambda _programs: ([], []))
    reviewed = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith(f"{box_name} ")]
    assert list(lines_of(box_name, tmp_path)) == reviewed


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        patch.setenv("HOME", home)
        listed = [line for name in DESCRIBED for line in lines_of(name, Path(home) / name)]
    LIST.write_text(HEADER + "\n".join(listed) + "\n", encoding="utf-8")
