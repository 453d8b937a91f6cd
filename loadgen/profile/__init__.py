"""A profile: how the server starts (or where it is), what load to send, what to expect.

A TOML file becomes one frozen, validated `Profile`, or a `ProfileError` that names file, key and value. Invariants:
a profile never changes after loading; unknown keys are refused, with the nearest known one; nothing here touches
the network or starts anything.
"""

BASE = "base"
"""The name of a profile without any of its variants."""
