"""The writer's vocabulary of captured tensors, and its dice: the bottom layer of the random rules (see rules.py)."""

from __future__ import annotations

import random
from typing import Any

INTEGER_DTYPES = ((5, "int64"), (3, "int32"), (2, "int16"), (1, "int8"), (1, "uint8"))
SENTINELS = ("-1", "torch.iinfo(torch.int64).max", "torch.iinfo(torch.int64).min", "(1 << 31)", "-(1 << 62)")


class TableWriter:
    """Writes tables as module-level lines; each method returns the name of the table it wrote."""

    def __init__(self, chance: random.Random, B: int, H: int, q_len: int, kv_len: int) -> None:
        self.chance = chance
        self.B, self.H, self.q_len, self.kv_len = B, H, q_len, kv_len
        self.longest = max(q_len, kv_len)
        self.table_lines: list[str] = []

    def pick(self, *options: Any) -> Any:
        """One of the options, each a value or a (weight, value) pair."""
        pairs = [option if isinstance(option, tuple) else (1, option) for option in options]
        return self.chance.choices([value for _, value in pairs], [weight for weight, _ in pairs])[0]

    def write(self, *options: Any) -> str:
        """One of the options as source; a function among them is called only when chosen, as it may add tables."""
        chosen = self.pick(*options)
        return str(chosen() if callable(chosen) else chosen)

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        return self.chance.random() < probability

    def whole(self, low: int, high: int) -> int:
        """A whole number in ``[low, high]``."""
        return self.chance.randint(low, high)

    def table(self, expression: str) -> str:
        """Name the value of an expression, evaluated once, outside the rule."""
        name = f"table_{len(self.table_lines)}"
        self.table_lines.append(f"{name} = {expression}")
        return name

    def random_integers(self, *shape: int, low: int = -9, high: int = 20, dtype: str | None = None) -> str:
        """The expression of a random table with values in ``[low, high)``."""
        dtype = dtype or self.pick(*INTEGER_DTYPES)
        if dtype == "uint8":
            low = max(low, 0)
        return f"torch.randint({low}, {high}, {shape}, generator=generator).to(torch.{dtype})"

    def numbers(self, *shape: int, low: int = -9, high: int = 20, dtype: str | None = None) -> str:
        """A random table with values in ``[low, high)``."""
        return self.table(self.random_integers(*shape, low=low, high=high, dtype=dtype))

    def positions(self, *shape: int, dtype: str | None = "int64") -> str:
        """A table of token positions, one past the end included."""
        return self.numbers(*shape, low=0, high=self.longest + 1, dtype=dtype)

    def integer_table(self, *shape: int) -> str:
        """A table of whole numbers: random, sorted, cumulated, or with sentinels too large for arithmetic."""
        values = self.random_integers(*shape, low=self.pick(-9, 0, -40), high=self.pick(20, 3, 60))
        kind = self.chance.random()
        if kind < 0.5:
            return self.table(values)
        if kind < 0.55:  # not contiguous
            doubled = self.random_integers(*shape[:-1], 2 * shape[-1])
            return self.table(f"({doubled})[..., ::2]")
        if kind < 0.75:
            return self.table(f"{values}.sort(-1).values")
        if kind < 0.85:
            return self.table(f"{values}.cumsum(-1)")
        marked = f"torch.rand({shape}, generator=generator) < {self.pick(0.1, 0.4)}"
        values = self.random_integers(*shape, dtype="int64")
        return self.table(f"{values}.masked_fill({marked}, {self.pick(*SENTINELS)})")

    def float_table(self, *shape: int) -> str:
        """A table of a floating dtype, now and then with NaN or an infinity in it."""
        dtype = self.pick((5, "float32"), (3, "float64"), (1, "bfloat16"), (1, "float16"))
        scale, offset = self.pick(1, 20, 40), self.pick(0, 5)
        values = f"(torch.rand({shape}, generator=generator) * {scale} - {offset}).to(torch.{dtype})"
        if self.happens(0.1):
            special = self.pick("nan", "inf", "-inf")
            values += f".masked_fill(torch.rand({shape}, generator=generator) < 0.1, float('{special}'))"
        return self.table(
            self.write((15, values), (1, f"{values}.requires_grad_()"), (1, f"torch.nn.Parameter({values})"))
        )

    def boolean_table(self, *shape: int) -> str:
        """A table of dtype bool, from nearly empty to nearly full."""
        return self.table(f"torch.rand({shape}, generator=generator) < {self.pick(0.02, 0.1, 0.5, 0.9, 0.98)}")

    def scalar_tensor(self) -> str:
        """A captured 0-d tensor, often of another dtype than the positions."""
        dtype = self.pick(*INTEGER_DTYPES, (1, "float32"), (1, "float64"))
        value: Any = self.whole(0 if dtype == "uint8" else -6, 30)
        if dtype == "int64" and self.happens(0.1):
            value = self.pick(40000, "1 << 31", "1 << 40", "1 << 61", -70000)
        return self.table(f"torch.tensor({value}, dtype=torch.{dtype})")

    def document_ids(self, length: int) -> str:
        """Sorted document ids with empty documents, now and then padded with -1 at the end."""
        cuts = sorted(self.whole(0, length) for _ in range(self.whole(0, 4)))
        lengths = [end - start for start, end in zip([0, *cuts], [*cuts, length], strict=True)]
        dtype = self.pick((3, "int64"), (2, "int32"), (1, "int16"))
        ids = f"torch.repeat_interleave(torch.arange({len(lengths)}), torch.tensor({lengths})).to(torch.{dtype})"
        if self.happens(0.25):
            ids = f"torch.where(torch.arange({length}) < {self.whole(0, length)}, {ids}, -1)"
        return self.table(ids)
