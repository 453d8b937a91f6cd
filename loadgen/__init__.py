"""The headless core of vramp: server, load, measurement and result, without a screen.

It imports nothing from the UI; `tui` is built on top of it.
"""

__version__ = "1.0.0rc1"
