"""The cockpit: a Textual screen over a run, and the command line that opens it."""
