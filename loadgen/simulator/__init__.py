"""An engine that behaves like vLLM over HTTP, knows the truth it served, and can misbehave on demand.

Run as `python -m loadgen.simulator`. Everything here is the server's side of a measurement: nothing in it may import
the client's code, or an error in one would hide in the other.
"""
