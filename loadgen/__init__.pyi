from loadgen.store.library import read_histograms as read_histograms
from loadgen.store.library import read_result as read_result
from loadgen.store.library import read_summary as read_summary

__all__ = ["read_histograms", "read_result", "read_summary"]
__version__: str
