"""Recipes of vllm-project/recipes: their YAML, merged here for one node, and the JSON that their site has merged.

The order in which a recipe's parts are laid over each other is that of its site (`src/lib/command-synthesis.js`): the
model's, the variant's, the strategy's, the hardware's, the features'. A flag that comes again replaces the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.errors import ProfileError
from loadgen.server.recipes.fields import Fields, table, tables, text, unknown, words
from loadgen.server.recipes.flags import ServedCommand, Word, served
from loadgen.server.recipes.hardware import NODES, Node, node_called
from loadgen.server.recipes.imported import (
    Imported,
    RecipeChoice,
    default_load,
    docker_variant,
    environment,
    profile_name,
)

_KIND = "a recipe of vllm-project/recipes (Apache-2.0)"
_DEFAULT = "default"
_MAX_GB = 1_000_000
_PARALLEL_FLAGS = {
    "single_node_tp": ("--tensor-parallel-size", ()),
    "single_node_tep": ("--tensor-parallel-size", ("--enable-expert-parallel",)),
    "single_node_dep": ("--data-parallel-size", ("--enable-expert-parallel",)),
}
_KNOWN_KEYS = """
    meta model features opt_in_features hardware_opt_in_features variants compatible_strategies default_strategy
    hardware_overrides strategy_overrides strategy_hardware kv_offload_support hardware_notes guide
    dependencies omni hf_id recommended_command kv_cache_strategy_hardware
""".split()
_MERGED_KEYS = """
    hardware strategy variant node_count deploy_type env docker_image command argv docker_command docker_argv companions
    strategy_spec hardware_profile alternatives by_hardware
""".split()
_IMAGES = {"NVIDIA": "vllm/vllm-openai", "AMD": "vllm/vllm-openai-rocm", "Intel": "vllm/vllm-openai-cpu"}
_BLACKWELL_ONLY = ("nvfp4", "fp4")


def is_recipe(document: Fields) -> bool:
    """Whether a YAML document looks like a recipe."""
    return isinstance(document.get("model"), Mapping) and "model_id" in document["model"]


def is_merged(document: Fields) -> bool:
    """Whether a JSON document is one of the site's, for a model or for a model on some hardware."""
    return "recommended_command" in document or ("deploy_type" in document and "hardware" in document)


def import_recipe(document: Fields, choice: RecipeChoice) -> Imported:
    """A recipe's YAML for one node; raises `ProfileError` for what vramp cannot start or measure."""
    return _Recipe(document, choice).imported()


def import_merged(document: Fields, choice: RecipeChoice) -> Imported:
    """What the site has merged; raises `ProfileError` if the choice is another, or vramp cannot start it."""
    rendered = table(document, "recommended_command") if "recommended_command" in document else document
    _require_same_choice(rendered, choice)
    deployed = text(rendered, "deploy_type")
    if deployed != "single_node":
        raise ProfileError(f"deploy_type {deployed}: vramp starts servers on one machine; {_alternatives(rendered)}")
    argv = words(rendered, "argv")
    if argv[:2] != ["vllm", "serve"]:
        raise ProfileError("argv: expected the words of a `vllm serve`")
    hardware, variant, strategy = (text(rendered, key) for key in ("hardware", "variant", "strategy"))
    found = served([Word(word) for word in argv[2:]])
    left_out = [*found.left_out, *unknown(rendered, _MERGED_KEYS)]
    left_out += [
        f"a process that runs along with the server: {text(companion, 'command')}"
        for companion in tables(rendered, "companions")
    ]
    known = next((node for node in NODES if node.word == hardware), None)
    return _profile(
        found,
        environment(table(rendered, "env"), left_out),
        image=text(rendered, "docker_image"),
        node=known,
        names=[hardware, variant, strategy],
        left_out=left_out,
        notes=[f"variant {variant}, strategy {strategy}, merged by the recipes' site"],
    )


def _require_same_choice(rendered: Fields, choice: RecipeChoice) -> None:
    for key in ("hardware", "variant", "strategy"):
        wanted, there = getattr(choice, key), text(rendered, key)
        if key == "hardware" and wanted is not None:
            wanted = node_called(wanted).word
        if wanted is not None and wanted != there:
            raise ProfileError(f"--{key} {wanted}: this is merged for {there}; {_alternatives(rendered)}")
    if choice.features is not None:
        raise ProfileError("--features: this is merged with the recipe's own; import its YAML to choose others")


def _alternatives(rendered: Fields) -> str:
    """Where the site has the others."""
    found = [table(rendered, key) for key in ("by_hardware", "alternatives")]
    places = [text(links, name) for links in found for name in links]
    listed = ", ".join(place for place in places if "multi" not in place and "pd_" not in place)
    return f"others are at https://recipes.vllm.ai: {listed}" if listed else "it has no other"


class _Recipe:
    def __init__(self, document: Fields, choice: RecipeChoice) -> None:
        self.document = document
        self.meta = table(document, "meta")
        self.model = table(document, "model")
        self.left_out = unknown(document, _KNOWN_KEYS)
        tasks = words(self.meta, "tasks")
        for task in ("omni", "embedding"):
            if task in tasks and "text" not in tasks:
                raise ProfileError(f"a recipe for {task}: vramp measures servers that generate text")
        self.node = self._node(choice)
        self.variant_name, self.variant = self._variant(choice)
        self.strategy = self._strategy(choice)
        self.modes: dict[str, str] = {}
        self.features = self._features(choice)

    def imported(self) -> Imported:
        line = [text(self.variant, "model_id") or text(self.model, "model_id")]
        variables: dict[str, Any] = {}
        for layer in self._layers():
            for key in ("base_args", "args", "extra_args", "vllm_args"):
                line += _arguments(layer, key)
            for key in ("base_env", "env", "extra_env"):
                variables |= table(layer, key)
        found = served([Word(word) for word in line])
        left_out = self.left_out + found.left_out
        left_out += [f"to install first: {text(one, 'command')}" for one in tables(self.document, "dependencies")]
        left_out += [
            f"a process that feature {name} runs along with the server: {text(table(feature, 'companion'), 'command')}"
            for name, feature in self.features.items()
            if "companion" in feature
        ]
        shown = [f"{name}:{self.modes[name]}" if name in self.modes else name for name in self.features]
        env = environment(variables, left_out)
        version = text(self.variant, "min_vllm_version") or text(self.model, "min_vllm_version")
        notes = [
            f"variant {self.variant_name}, strategy {self.strategy}, features: {', '.join(shown) or 'none'}",
            *([f"it needs vLLM {version} or later"] if version else []),
            *self._caveats(),
        ]
        names = [self.node.word, self.variant_name, self.strategy]
        return _profile(found, env, self._image(), self.node, names=names, left_out=left_out, notes=notes)

    def _node(self, choice: RecipeChoice) -> Node:
        listed = table(self.meta, "hardware")
        word = (
            choice.hardware or self.meta.get("default_hardware") or (next(iter(listed)) if len(listed) == 1 else None)
        )
        if word is None:
            raise ProfileError(f"the recipe is for several: give --hardware, such as {', '.join(listed) or 'h200'}")
        node = node_called(word)
        if listed.get(node.word) == "unsupported":
            raise ProfileError(f"--hardware {node.word}: the recipe says that the model does not run there")
        return node

    def _variant(self, choice: RecipeChoice) -> tuple[str, Fields]:
        variants = table(self.document, "variants")
        name = choice.variant or _DEFAULT
        if name not in variants and name != _DEFAULT:
            raise ProfileError(f"--variant {name}: the recipe has {', '.join(variants) or 'none'}")
        variant = table(variants, name)
        supported = words(variant, "supported_hardware")
        if supported and self.node.word not in supported:
            raise ProfileError(f"variant {name} is for {', '.join(supported)}, not for {self.node.word}")
        precision = text(variant, "precision")
        if precision in _BLACKWELL_ONLY and self.node.generation != "blackwell" and "precision_hardware" not in variant:
            others = ", ".join(other for other in variants if other != name)
            raise ProfileError(f"variant {name} is {precision}, which is for Blackwell; there is --variant {others}")
        return name, variant

    def _strategy(self, choice: RecipeChoice) -> str:
        listed = words(self.document, "compatible_strategies")
        gates = table(self.document, "strategy_hardware")
        here = {name: self._for_hardware(table(gates, name)) or name in listed for name in _PARALLEL_FLAGS}
        offered = [name for name, gate in here.items() if gate and gate != "unsupported"]
        name = choice.strategy or text(self.document, "default_strategy") or "single_node_tp"
        if choice.strategy is None and name not in offered and offered:
            name = offered[0]
        if name not in _PARALLEL_FLAGS:
            raise ProfileError(
                f"strategy {name}: vramp starts servers on one machine; there is {', '.join(offered) or 'none for it'}"
            )
        if name not in offered:
            raise ProfileError(f"strategy {name}: on {self.node.word} the recipe offers {', '.join(offered) or 'none'}")
        return name

    def _features(self, choice: RecipeChoice) -> dict[str, Fields]:
        """The features to switch on: those asked for, `default` for the recipe's, or the recipe's."""
        features = table(self.document, "features")
        optional = set(words(self.document, "opt_in_features"))
        optional |= set(words(table(self.document, "hardware_opt_in_features"), self.node.word))
        optional -= table(self.variant, "default_modes").keys()
        own = [name for name in features if name not in optional]
        names: list[str] = []
        for word in choice.features if choice.features is not None else [_DEFAULT]:
            name, _, mode = word.partition(":")
            if name != _DEFAULT and name not in features:
                raise ProfileError(f"--features {name}: the recipe has {', '.join(features) or 'none'}")
            names += own if name == _DEFAULT else [name]
            self.modes |= {name: mode} if mode else {}
        off = [name for name in features if name not in names]
        if off:
            self.left_out.append(f"features that are off: {', '.join(off)} (--features default,{off[0]})")
        return {name: table(features, name) for name in features if name in names}

    def _layers(self) -> Iterator[Fields]:
        """Tables with arguments and variables, in their order."""
        own = table(table(self.document, "strategy_overrides"), self.strategy)
        flag, more = _PARALLEL_FLAGS[self.strategy]
        exact = table(table(self.variant, "hardware_overrides"), self.node.word)
        yield self.model
        for layer in (self.variant, exact):
            yield {key: layer[key] for key in ("extra_args", "extra_env") if key in layer}
        yield {"args": [*more, flag, str(self._parallel(own))]}
        yield {key: own[key] for key in ("extra_args", "vllm_args", "env", "extra_env") if key in own}
        if of_strategy := self._of_generation(own):
            yield of_strategy
        else:
            yield self._of_generation(self.document) or {}
            yield self._of_generation(self.variant) or {}
        yield table(table(own, "hardware_overrides"), self.node.word)
        for name, feature in self.features.items():
            yield {"args": self._feature_args(name, feature)}

    def _of_generation(self, layer: Fields) -> Fields | None:
        overrides = table(layer, "hardware_overrides")
        found = overrides.get(self.node.generation)
        if found is None and self.node.brand == "NVIDIA":
            found = overrides.get("nvidia")
        return found if isinstance(found, Mapping) else None

    def _feature_args(self, name: str, feature: Fields) -> list[str]:
        strategies = words(feature, "strategies")
        if strategies and self.strategy not in strategies:
            self.left_out.append(f"feature {name}: not with strategy {self.strategy}")
            return []
        modes = table(feature, "modes")
        if modes:
            mode_name, feature = self._mode(name, feature, modes)
            self.modes[name] = mode_name
            here = self._for_hardware(table(feature, "hardware_overrides"))
        else:
            here = self._of_generation(feature)
        return _arguments(here if isinstance(here, Mapping) and "args" in here else feature, "args")

    def _mode(self, name: str, feature: Fields, modes: Fields) -> tuple[str, Fields]:
        offered = []
        for mode in modes:
            variants = words(table(modes, mode), "variants")
            gates = table(table(modes, mode), "hardware")
            refused = "unsupported" in (gates.get(self.node.generation), gates.get(self.node.word))
            if not refused and (not variants or self.variant_name in variants):
                offered.append(mode)
        wanted = self.modes.get(name)
        if wanted is not None and wanted not in offered:
            raise ProfileError(f"--features {name}:{wanted}: here the recipe has {', '.join(offered) or 'no mode'}")
        candidates = (wanted, table(self.variant, "default_modes").get(name), feature.get("default_mode"), *offered)
        chosen = next((mode for mode in candidates if mode in offered), None)
        if chosen is None:
            self.left_out.append(f"feature {name}: no mode of it is for this variant and hardware")
            return "none", {}
        return str(chosen), table(modes, str(chosen))

    def _parallel(self, own: Fields) -> int:
        """The size of the strategy's kind of parallelism: what is declared, one GPU if the weights fit, or all."""
        if self.strategy != "single_node_tp":
            return self.node.gpus
        for declared in (self.variant.get("tp"), own.get("tp")):
            size = self._for_hardware(declared) if isinstance(declared, Mapping) else declared
            if isinstance(size, int) and not isinstance(size, bool) and size > 0:
                return size if self.node.generation == "cpu" else min(size, self.node.gpus)
        needed = self._needed_gb()
        fits = needed is not None and needed <= self.node.memory_gb / self.node.gpus
        return 1 if fits else self.node.gpus

    def _needed_gb(self) -> int | float | None:
        """The memory of GPUs that the variant takes at least; None if the recipe does not say."""
        needed = self.variant.get("vram_minimum_gb")
        return needed if isinstance(needed, int | float) and 0 < needed < _MAX_GB else None

    def _for_hardware(self, layer: Fields) -> Any:  # noqa: ANN401 - any of YAML's types
        keys = (self.node.word, self.node.generation, self.node.brand.lower(), _DEFAULT)
        return next((layer[key] for key in keys if layer.get(key) is not None), None)

    def _image(self) -> str:
        exact = table(table(self.variant, "hardware_overrides"), self.node.word).get("docker_image")
        brand = self.node.brand.lower()
        for declared in (exact, self.variant.get("docker_image"), self.model.get("docker_image")):
            found = declared.get(brand, declared) if isinstance(declared, Mapping) else declared
            if isinstance(found, Mapping) and brand == "nvidia":
                found = found.get("cu130") or found.get("cu129")
            if isinstance(found, str) and (declared is exact or brand == "nvidia" or isinstance(declared, Mapping)):
                return found
        tag = "nightly" if self.model.get("nightly_required") is True else "latest"
        if brand == "intel":
            tag = "latest-x86_64"
        return f"{_IMAGES[self.node.brand]}:{tag}"

    def _caveats(self) -> Iterator[str]:
        verified = [name for name, state in table(self.meta, "hardware").items() if state == "verified"]
        if verified and self.node.word not in verified:
            yield f"verified on {', '.join(verified)}, not on {self.node.word}"
        elif verified:
            yield f"verified on {self.node.word}, according to the recipe"
        needed = self._needed_gb()
        if needed is not None and needed > self.node.memory_gb:
            yield f"it takes {needed} GB of GPU memory, and {self.node.word} has {self.node.memory_gb} GB: too little"


def _profile(
    found: ServedCommand,
    env: dict[str, str],
    image: str,
    node: Node | None,
    *,
    names: Sequence[str],
    left_out: list[str],
    notes: list[str],
) -> Imported:
    if found.model is None:
        raise ProfileError("the recipe names no model")
    hardware, variant, strategy = names
    platform = None if node is None else node.platform
    document = found.document(f"{found.model} on {hardware}, from its recipe", platform, env)
    document["load"] = default_load(found.args)
    if image:
        document["variants"] = docker_variant(image, platform)
    short = strategy.removeprefix("single_node_")
    name = profile_name(
        hardware,
        found.model.rpartition("/")[2].lower(),
        variant if variant != _DEFAULT and variant not in found.model.lower() else "",
        short if short != "tp" else "",
    )
    return Imported(_KIND, name, document, [*notes, "the load below is vramp's: a recipe has none"], left_out)


def _arguments(layer: Fields, key: str) -> list[str]:
    """The words of a list; some write `--flag value` as one word, which the recipes' site passes to a shell."""
    found = words(layer, key)
    return [
        part for word in found for part in (word.split(" ", 1) if word.startswith("--") and "=" not in word else [word])
    ]
