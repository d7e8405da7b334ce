"""The documentation: what generates it, its hand-written pages, and examples."""
