"""Measurements: histograms, the figures of a stage, the state of a run, the result."""
