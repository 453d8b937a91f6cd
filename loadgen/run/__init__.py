"""Runs: starts, drives, watches and replays them."""
