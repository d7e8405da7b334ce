"""Attention measured: every entry of the catalogue, every way to compute it, gated before it is timed."""
