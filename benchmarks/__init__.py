"""Benchmarks: figures against the truth, and ratios within one run; none of them passes or fails."""
