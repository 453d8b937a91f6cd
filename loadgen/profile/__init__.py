"""A profile: how the server starts (or where it is), what load to send, what to expect.

A TOML file becomes one frozen, validated `Profile`, or a `ProfileError` that names file, key and value. Invariants:
a profile never changes after loading; unknown keys are refused with the nearest known one; nothing here touches
the network or starts anything.
"""

from loadgen.profile.document import apply_variant, build_profile, load_document, load_profile, variant_names
from loadgen.profile.load import Cancel, Load, StageSettings
from loadgen.profile.schema import Docker, Profile, Reference, ReferencePoint, Server
from loadgen.profile.values import parse_duration_s

__all__ = [
    "apply_variant",
    "build_profile",
    "load_document",
    "load_profile",
    "parse_duration_s",
    "variant_names",
    "Cancel",
    "Docker",
    "Load",
    "Profile",
    "Reference",
    "ReferencePoint",
    "Server",
    "StageSettings",
]
