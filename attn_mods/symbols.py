"""Numbers that a compiler which traces a call holds as symbols, because they changed between calls."""

from __future__ import annotations


def fixed(number: int) -> int:
    """The number as a plain int; a compiler that traces compiles again for another.

    A number that changed between calls is a symbol there. Its arithmetic (torch 2.13) is not that of large ints, and
    no kernel of flex_attention is generated for a captured product or quotient of symbols. Of the length of a range
    Dynamo makes a plain int.
    """
    return len(range(number)) - len(range(-number))
