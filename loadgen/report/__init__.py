"""Functions over a result."""
