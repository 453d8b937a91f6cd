"""Decides what load to send, stage by stage: fixed plans, and searches that depend on what was measured."""
