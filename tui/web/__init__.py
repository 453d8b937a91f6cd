"""The cockpit in a browser: a door of our own before textual-serve, and the page it serves."""
