"""The headless core of vramp: server, load, measurement and result, without a screen.

It imports nothing from the UI; `tui` is built on top of it. Three functions are for other programs: `read_result`,
`read_summary` and `read_histograms`. They are imported when they are used, because every process of vramp imports this
package; `__init__.pyi` has their types.
"""

import importlib

__version__ = "1.0.0rc1"
__all__ = ["read_histograms", "read_result", "read_summary"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("loadgen.store.library"), name)
