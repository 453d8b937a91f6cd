"""Reports: pure functions of a result, one file per format."""
