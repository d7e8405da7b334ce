"""Kernels that turn tile states into block lists, and their pure-torch twins."""
