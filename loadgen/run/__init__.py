"""Runs: what starts, drives, watches and replays one."""
