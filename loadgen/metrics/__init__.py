"""Statistics: histograms, the sums of a stage, errors of blocks, the rows of verdicts, MFU, energy."""
