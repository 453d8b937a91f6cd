"""Worker processes that drive streams, and the fleet that starts, steers and merges them.

Nothing outside this package knows how workers are started.
"""
