"""Telemetry: GPU backends, each in a child process of its own, and the host.

Nothing of a vendor's library can hang, crash or scribble on the cockpit, and the load never waits for telemetry.
"""
