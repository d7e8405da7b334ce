"""Measured cells of the catalogue: what was run, on what, and every sample. ``python -m benchmarks --help``."""
