"""Starts, watches and talks to a local inference server, and leaves nothing of it behind.

Only processes that vramp started are ever signalled, and nothing goes through a shell.
"""
