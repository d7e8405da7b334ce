"""Integer arithmetic as torch does it, for kernels."""

import triton
import triton.language as tl


@triton.jit
def floor_divide(a, b):
    """`a // b` rounded down; the machine rounds to zero."""
    quotient = a // b
    remainder = a - quotient * b
    below = (remainder != 0) & ((remainder < 0) != (b < 0))
    return tl.where(below, quotient - 1, quotient)
