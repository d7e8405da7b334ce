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


@triton.jit
def shift_left(a, b):
    """`a << b`; 0 where b is negative or not less than the bits of a, which the machine leaves undefined."""
    bits = a.dtype.primitive_bitwidth
    return tl.where((b >= 0) & (b < bits), a << (b & (bits - 1)), 0).to(a.dtype)


@triton.jit
def shift_right(a, b):
    """`a >> b`; the sign everywhere where b is negative or not less than the bits of a."""
    bits = a.dtype.primitive_bitwidth
    return a >> tl.where((b >= 0) & (b < bits), b, bits - 1)
