"""Checks before a start: what in profile, installation and box would make it fail, or its figures less meaningful."""
