"""Rows of InferenceX's configuration: the model, its parallelism and the load; the flags are in the row's script.

A row searches a space: each way to split the model over the GPUs, with the concurrencies to measure it at. The first
becomes the profile, the others its variants, by the rules of `utils/matrix_logic` and `benchmarks` there (843c625).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from loadgen.errors import ProfileError
from loadgen.profile.values import MAX_CONCURRENCY
from loadgen.server.recipes.fields import Fields, table, tables, text, unknown
from loadgen.server.recipes.flags import ServedCommand
from loadgen.server.recipes.hardware import Node, node_called, node_in
from loadgen.server.recipes.imported import Imported, RecipeChoice, default_load, docker_variant, profile_name

_KIND = "a row of SemiAnalysisAI/InferenceX (Apache-2.0)"
_FIXED = "fixed-seq-len"
_ROW_KEYS = "image model model-prefix runner precision framework multinode disagg scenarios".split()
_SIZE_KEYS = ["tp", "ep", "dcp-size", "pcp-size"]
_SPACE_KEYS = [*_SIZE_KEYS, "dp-attn", "conc-start", "conc-end", "conc-list", "spec-decoding"]
_SLACK = 256  # what its server has as context beyond prompt and answer
_SHOWN = 30


class Split(NamedTuple):
    """How a model is spread over GPUs."""

    tp: int
    ep: int
    dcp: int
    pcp: int
    dp_attention: bool
    spec_decoding: str

    @property
    def name(self) -> str:
        parts = [
            f"tp{self.tp}",
            f"ep{self.ep}" if self.ep > 1 else "",
            "dp" if self.dp_attention else "",
            f"dcp{self.dcp}" if self.dcp > 1 else "",
            f"pcp{self.pcp}" if self.pcp > 1 else "",
            re.sub(r"[^A-Za-z0-9]+", "-", self.spec_decoding),
        ]
        return "-".join(filter(None, parts))

    @property
    def args(self) -> dict[str, Any]:
        """The flags that its scripts make of this."""
        args: dict[str, Any] = {"tensor-parallel-size": 1 if self.dp_attention else self.tp}
        if self.dp_attention and self.tp > 1:
            args["data-parallel-size"] = self.tp
        if self.ep > 1:
            args["enable-expert-parallel"] = True
        if self.dcp > 1:
            args["decode-context-parallel-size"] = self.dcp
        if self.pcp > 1:
            args["prefill-context-parallel-size"] = self.pcp
        return args


Points = list[tuple[dict[str, int], list[int]]]
"""Shapes, empty without lengths, and the concurrencies at each."""


def is_rows(document: Fields) -> bool:
    """Whether a YAML document is a file of rows."""
    return bool(document) and all(
        isinstance(row, Mapping) and "framework" in row and "model" in row for row in document.values()
    )


def import_row(document: Fields, choice: RecipeChoice) -> Imported:
    """One row of the file; raises `ProfileError` for one that is not of vLLM on one machine."""
    name, row = _chosen(document, choice)
    framework = text(row, "framework")
    if framework != "vllm":
        raise ProfileError(f"row {name}: its framework is {framework}; vramp imports those of vllm")
    if row.get("multinode"):
        raise ProfileError(f"row {name}: it takes several machines; vramp starts servers on one")
    left_out = unknown(row, _ROW_KEYS)
    groups = _groups(row, name, left_out)
    model, image, precision = text(row, "model"), text(row, "image"), text(row, "precision")
    node = node_in(text(row, "runner")) if choice.hardware is None else node_called(choice.hardware)
    document = _document(groups, model, node)
    if image:
        document.setdefault("variants", {}).update(docker_variant(image, None if node is None else node.platform))
    script = f"{text(row, 'model-prefix')}_{precision}_{node.word if node is not None else text(row, 'runner')}"
    left_out += [
        f"the row's flags and variables, which are in a script of benchmarks/single_node, {script}*.sh: `vramp import` "
        f"reads it with --define MODEL={model} --define TP={next(iter(groups)).tp}",
        "the spread of lengths: InferenceX draws each from 80 % to 100 % of ISL and OSL; here they are fixed",
    ]
    notes = [f"row {name}, precision {precision}, image {image}"]
    return Imported(_KIND, profile_name(name), document, notes, left_out)


def _chosen(document: Fields, choice: RecipeChoice) -> tuple[str, Fields]:
    node = None if choice.hardware is None else node_called(choice.hardware)
    candidates = [
        name
        for name, row in document.items()
        if text(row, "framework") == "vllm" and not row.get("multinode")
        if node is None or node_in(text(row, "runner")) == node
    ]
    if len(document) == 1:
        candidates = list(document)
    names = candidates if choice.row is None else [name for name in document if name == choice.row]
    if len(names) == 1:
        return names[0], document[names[0]]
    offered = "none of them is of vLLM on one machine"
    if candidates:
        more = f" and {len(candidates) - _SHOWN} more" if len(candidates) > _SHOWN else ""
        offered = f"of vLLM there are: {', '.join(candidates[:_SHOWN])}{more}"
    if choice.row is not None:
        raise ProfileError(f"--row {choice.row}: no such row; {offered}")
    raise ProfileError(f"the file has {len(document)} rows: give --row NAME; {offered}")


def _groups(row: Fields, name: str, left_out: list[str]) -> dict[Split, Points]:
    """What is measured of each way to split the model, in the order of the row."""
    groups: dict[Split, Points] = {}
    scenarios = table(row, "scenarios")
    for scenario in scenarios:
        if scenario != _FIXED:
            left_out.append(f"scenario {scenario:.60}: its requests; vramp sends prompts of a fixed length")
        for entry in tables(scenarios, scenario):
            shape = {key: _count(entry, key) for key in ("isl", "osl")} if scenario == _FIXED else {}
            for space in tables(entry, "search-space"):
                notes = unknown(space, _SPACE_KEYS)
                if spec_decoding := text(space, "spec-decoding"):
                    notes.append(f"spec-decoding {spec_decoding:.40}: its flags")
                left_out += [note for note in notes if note not in left_out]
                tp, ep, dcp, pcp = (_count(space, key) if key in space else 1 for key in _SIZE_KEYS)
                split = Split(tp, ep, dcp, pcp, space.get("dp-attn") is True, spec_decoding[:20])
                groups.setdefault(split, []).append((shape, _concurrencies(space)))
    if not groups:
        raise ProfileError(f"row {name}: it has no search-space")
    return groups


def _concurrencies(space: Fields) -> list[int]:
    listed = space.get("conc-list")
    if listed is not None:
        if not isinstance(listed, list) or not listed:
            raise ProfileError("conc-list: expected a list of numbers")
        return [_count({"conc-list": number}, "conc-list") for number in listed]
    least, most = _count(space, "conc-start"), _count(space, "conc-end")
    ladder = [least]
    while ladder[-1] < most:
        ladder.append(min(ladder[-1] * 2, most))
    return ladder


def _document(groups: Mapping[Split, Points], model: str, node: Node | None) -> dict[str, Any]:
    first = next(iter(groups))
    hardware = f" on {first.tp} {node.word}" if node is not None else ""
    shapes = [shape for points in groups.values() for shape, _ in points]
    context = max((shape["isl"] + shape["osl"] + _SLACK for shape in shapes if shape), default=None)
    args = first.args | ({"max-model-len": context} if context is not None else {})
    platform = None if node is None else node.platform
    document = ServedCommand(model, args=args).document(f"{model}{hardware}, from InferenceX", platform, {})
    alike = all(shape == shapes[0] for shape in shapes)
    for split, points in groups.items():
        stages = [default_load({}) | shape | {"concurrency": number} for shape, numbers in points for number in numbers]
        ladder = list(dict.fromkeys(stage["concurrency"] for stage in stages))
        sent = {"load": stages[0] | {"concurrency": ladder}} if alike else {"stages": stages}
        if split is first:
            document |= sent
        else:
            unset = [f"server.args.{flag}" for flag in first.args if flag not in split.args]
            variant = {"unset": unset} if unset else {}
            document.setdefault("variants", {})[split.name] = variant | sent | {"server": {"args": split.args}}
    return document


def _count(table: Fields, key: str) -> int:
    value = table.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_CONCURRENCY * 100:
        raise ProfileError(f"{key}: expected a number of at least 1")
    return value
