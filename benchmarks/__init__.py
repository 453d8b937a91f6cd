"""Benchmarks: measured beside truth, ratios within one run, never a pass or a fail."""
