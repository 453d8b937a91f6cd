"""Configurations that others published, as profiles: recipes, rows of a benchmark's configuration, command lines."""
