"""An engine that behaves like vLLM over HTTP, knows the truth it served, and can misbehave on demand.

Run as `python -m loadgen.simulator`. It is the server's side of a measurement, so nothing here may import the client's
code: an error in one would hide in the other.
"""
