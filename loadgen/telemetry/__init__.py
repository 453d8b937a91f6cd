"""Telemetry: GPU backends, each in a separate child process, and the host.

A vendor's library can neither hang nor crash vramp nor write to its screen, and the load never waits for telemetry.
"""
