"""What runs on many numbers at once: tile states to block lists, in torch and as kernels, and integer arithmetic."""
