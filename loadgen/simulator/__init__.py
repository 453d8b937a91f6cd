"""An engine that behaves like vLLM over HTTP, records what it really served, and can misbehave on demand.

Run it as `python -m loadgen.simulator`. It is the server's side of a measurement, so nothing here may import the
client's code: shared code would hide its own errors.
"""
