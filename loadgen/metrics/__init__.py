"""What was measured: histograms, the numbers of a stage, the state of a run, the result."""
