"""A local inference server: start it, watch it, talk to it, and leave nothing of it behind.

Only processes that vramp started are ever signalled, and nothing goes through a shell.
"""
