"""Benchmarks: figures beside the truth, and ratios within one run; none of them passes or fails."""
