"""The cockpit in a browser: textual-serve behind our own access check, and the page it serves."""
