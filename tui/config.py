"""The operator's settings, theme and keys, from `~/.config/vramp/config.toml` (or `$XDG_CONFIG_HOME/vramp/`).

    theme = "nord"

    [keys]
    "cockpit.more" = "plus,right"

A mistake is reported before the app opens, and nothing is applied: keys that do something unexpected are dangerous on a
live box.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from textual.app import App
from textual.keys import KEY_NAME_REPLACEMENTS, KEY_TO_UNICODE_NAME, Keys, key_to_character
from textual.theme import BUILTIN_THEMES

from loadgen.errors import UNDECODABLE, ProfileError
from loadgen.places import xdg_path
from tui.keys import FIXED, GROUPS
from tui.theme import COCKPIT

_KEYS_ARE = 'keys are a character, "space", "f5", "ctrl+k", or several: "a,b"'
_MODIFIERS = ("ctrl", "shift", "alt", "super", "meta", "hyper")
_NAMED = {key.value for key in Keys} | {*KEY_NAME_REPLACEMENTS.values(), *KEY_TO_UNICODE_NAME}


class Config(msgspec.Struct, frozen=True):
    """Theme, and keys by the id of their binding."""

    theme: str = COCKPIT.name
    keys: Mapping[str, str] = msgspec.field(default_factory=dict)


DEFAULTS = Config()


def keymap_of(app: App[Any]) -> Mapping[str, str]:
    """Return the keys that the operator has rebound, by binding id; none in an app without a config."""
    config = getattr(app, "config", DEFAULTS)
    assert isinstance(config, Config)
    return config.keys


def config_path() -> Path:
    return xdg_path("XDG_CONFIG_HOME", ".config", "config.toml")


def read_config(path: Path | None = None) -> Config:
    """Return the settings, the defaults if there is no file; raises `ProfileError` with file, key and value."""
    path = path or config_path()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return DEFAULTS
    except (OSError, *UNDECODABLE) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from error
    known = list(Config.__struct_fields__)
    unknown = document.keys() - known
    if unknown:
        raise ProfileError(f"{path}: {min(unknown)}: unknown key; known keys: {', '.join(known)}")
    theme, themes = document.get("theme", DEFAULTS.theme), [COCKPIT.name, *BUILTIN_THEMES]
    if theme not in themes:
        raise ProfileError(f"{path}: theme = {theme!r}: unknown theme; known themes: {', '.join(themes)}")
    return Config(theme, _keys(path, document))


def _keys(path: Path, document: Mapping[str, Any]) -> dict[str, str]:
    wanted = document.get("keys", {})
    if not isinstance(wanted, dict):
        raise ProfileError(f'{path}: keys: expected a table, such as [keys] with "cockpit.more" = "plus"')
    groups = [{binding.id: binding.key for binding in group if binding.id} for group in GROUPS]
    known = {name for group in groups for name in group}
    for name, key in wanted.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            words = "actions are named like cockpit.more, picker.start, log.follow"
            words = f"did you mean {near[0]}?" if near else words
            raise ProfileError(f"{path}: keys.{name}: unknown action; {words}")
        if not isinstance(key, str) or not all(_is_key(each) for each in _each(key)):
            raise ProfileError(f"{path}: keys.{name} = {key!r}: not a key; {_KEYS_ARE}")
        fixed = min(FIXED.keys() & set(_each(key)), default=None)
        if fixed is not None:
            words = f"{fixed} is reserved for {FIXED[fixed]}; choose another"
            raise ProfileError(f"{path}: keys.{name} = {key!r}: {words}")
    for group in groups:
        _refuse_clashes(path, group, wanted)
    return dict(wanted)


def _refuse_clashes(path: Path, group: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Refuse a key with two actions, as Textual would silently drop one; keys shared by default may stay so."""
    taken: dict[str, str] = {}
    for name, default in group.items():
        for key in _each(wanted.get(name, default)):
            other = taken.setdefault(key_to_character(key) or key, name)
            shared = key in _each(default) and key in _each(group[other])
            if other != name and not shared:
                mine, theirs = (name, other) if name in wanted else (other, name)
                raise ProfileError(
                    f"{path}: keys.{mine} = {wanted[mine]!r}: {key} is already the key of {theirs}; move that too"
                )


def _each(keys_text: str) -> list[str]:
    return [key.strip() for key in keys_text.split(",")]


def _is_key(key: str) -> bool:
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    known = len(last) == 1 or last in _NAMED
    return known and all(modifier in _MODIFIERS for modifier in modifiers)
