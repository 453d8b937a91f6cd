"""What each panel shows: pure functions from a `Frame` and a size to rows; the widgets are elsewhere.

Every function has the shape of `tui.panels.frame.Paint`. Texts from outside go through `format.plain`.
"""
