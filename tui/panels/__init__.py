"""What each panel says: pure functions from a `View` and a size to rows; the widgets are elsewhere.

Every function has the shape of `tui.board.Paint`. Texts from outside go through `format.plain`.
"""
