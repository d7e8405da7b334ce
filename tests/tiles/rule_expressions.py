"""Random nested expressions of the positions: the middle layer of the random rules (see rules.py)."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.tiles.rule_tables import TableWriter

HUGE = ("100003", "1000003", "(1 << 29)", "(1 << 31)", "(1 << 40)", "(1 << 61)", "-(1 << 33)", "(1 << 62)")


class ExpressionWriter(TableWriter):
    """Writes expressions as source, by kind: integer, real (floating point), boolean. ``depth`` bounds the nesting."""

    def __init__(self, chance: random.Random, B: int, H: int, q_len: int, kv_len: int) -> None:
        super().__init__(chance, B, H, q_len, kv_len)
        self.statements: list[str] = []
        self.local_integers: list[str] = []
        self.local_booleans: list[str] = []
        self.budget = chance.choice((12, 25, 45))

    def position(self) -> str:
        """The query's or the key's."""
        return self.chance.choice(("q_idx", "kv_idx"))

    def spent(self, depth: int) -> bool:
        """Whether to stop nesting here; also counts the node."""
        self.budget -= 1
        return depth <= 0 or self.budget <= 0

    # lookups

    def lookup(self, depth: int, make: Callable[..., str]) -> str:
        """A table read at one or two moving indices, at b or h, in one bracket or chained."""
        size, other = self.table_size(), self.table_size()
        index = self.index(size, depth)
        return self.write(
            (8, lambda: f"{make(size)}[{index}]"),
            (3, lambda: f"{make(self.H, size)}[h, {index}]"),
            (2, lambda: f"{make(self.B, size)}[b, {index}]"),
            (1, lambda: f"{make(self.B, self.H, size)}[b, h, {index}]"),
            (1, lambda: f"{make(self.H, size)}[h][{index}]"),
            (1, lambda: f"{make(size, 2)}[{index}, {self.pick('0', '1', '-1')}]"),
            (3, lambda: f"{make(size, other)}[{index}, {self.index(other, depth)}]"),
            (1, lambda: f"{make(self.H, size, other)}[h, {index}, {self.index(other, depth)}]"),
        )

    def table_size(self) -> int:
        return int(self.pick((4, self.longest), (1, 2 * self.longest - 1), (1, self.whole(1, 9))))

    def index(self, size: int, depth: int) -> str:
        """An index that stays in ``[-size, size)``: bare, wrapped by %, clamped, or negative."""
        position, last = self.position(), size - 1
        forms = [
            f"{position} % {size}",
            f"({position} % {size}) - {size}",
            f"({position} // {self.whole(2, 5)}) % {size}",
            f"({position} * 3) % {size}",
            f"(q_idx - kv_idx + {size}) % {size}",
            f"(q_idx - kv_idx) % {size}",
            f"((q_idx + kv_idx) // 3) % {size}",
            f"torch.clamp({position} - 3, 0, {last})",
            f"(q_idx - kv_idx).abs().clamp(max={last})",
            f"(q_idx - kv_idx).clamp({-size}, {last})",
            f"torch.where(q_idx >= kv_idx, {position} % {size}, {self.pick(0, -1, last, -size)})",
        ]
        if size >= self.longest:
            forms += [position, position, position, f"{position}.to(torch.int32)", f"{position} // 2"]
            forms += ["q_idx - kv_idx", "kv_idx - q_idx", f"{position} - {size}", f"-{position} - 1"]
            forms += [f"torch.minimum({position}, q_idx)"]
        if size >= 2 * self.longest - 1:
            forms += [f"q_idx - kv_idx + {self.longest - 1}"] * 4
        if depth > 0 and self.happens(0.3):
            value = f"({self.integer(depth - 1)}).long()"
            forms = [f"{value} % {size}", f"{value}.clamp({-size}, {last})"]
        return self.chance.choice(forms)

    # integers

    def integer(self, depth: int) -> str:
        """A tensor expression of an integer dtype (of any width)."""
        if self.spent(depth):
            return self.integer_leaf(0)
        chosen: Callable[[int], str] = self.pick(
            (3, self.integer_leaf),
            (6, self.integer_arithmetic),
            (2, self.integer_difference),
            (3, self.integer_division),
            (3, self.integer_unary),
            (2, self.integer_extremum),
            (2, self.integer_where),
            (4, self.integer_lookup),
            (1, self.integer_scaled),
            (1, self.integer_bits),
            (1, self.integer_from_boolean),
            (0.6, self.integer_stack),
            (0.4, self.integer_count),
            (0.4, self.integer_sorted_place),
            (0.4, self.integer_from_real),
            (0.8, self.integer_local),
        )
        return chosen(depth - 1)

    def integer_leaf(self, depth: int) -> str:
        if self.local_integers and self.happens(0.3):
            return self.chance.choice(self.local_integers)
        return self.write(
            (10, self.position),
            (0.7, "b"),
            (0.7, "h"),
            (0.6, self.scalar_tensor),
            (0.6, lambda: f"{self.numbers(self.H)}[h]"),
            (0.6, lambda: f"{self.numbers(self.B)}[b]"),
            (0.3, lambda: f"{self.numbers(self.B, self.H)}[b, h]"),
            (0.3, lambda: f"{self.position()}.to(torch.{self.pick('int32', 'int16', 'int8')})"),
            (0.2, lambda: f"{self.position()}.new_full((), {self.whole(-3, 9)})"),
            (0.2, lambda: f"torch.full_like(q_idx, {self.whole(-3, 30)})"),
            (0.1, lambda: f"torch.zeros_like({self.position()})"),
            (0.1, lambda: f"torch.tensor({self.whole(0, 9)}, device=q_idx.device)"),
        )

    def integer_local(self, depth: int) -> str:
        """A value given a name, so that later expressions share it."""
        value = self.integer(depth)
        name = f"value_{len(self.statements)}"
        self.statements.append(f"{name} = {value}")
        self.local_integers.append(name)
        return name

    def operand(self, depth: int) -> str:
        """An integer expression, or a plain Python integer."""
        return str(self.whole(-6, 30)) if self.happens(0.25) else self.integer(depth)

    def integer_arithmetic(self, depth: int) -> str:
        sign = self.pick((3, "+"), (3, "-"), (1, "*"))
        first, second = self.integer(depth), self.operand(depth)
        if self.happens(0.1):
            return f"({self.whole(-6, 30)} {sign} {first})"
        if self.happens(0.1):
            method = self.pick(*{"+": ("add",), "-": ("sub", "subtract", "rsub"), "*": ("mul", "multiply")}[sign])
            alpha = ", alpha=2" if method in ("add", "sub", "rsub") and self.happens(0.3) else ""
            as_method = f"({first}).{method}({second}{alpha})" if method != "rsub" else f"{second} - ({first})"
            return self.write(as_method, f"torch.{method}({first}, {second}{alpha})")
        return f"({first} {sign} {second})"

    def integer_difference(self, depth: int) -> str:
        first, second = self.chance.sample(("q_idx", "kv_idx"), 2)
        offset = self.whole(-9, 9)
        return self.write(f"({first} - {second})", f"({first} - {second} + {offset})", f"(2 * {first} - {second})")

    def divisor(self, depth: int) -> str:
        """Of either sign and of every kind, but never 0 and never -1."""
        dtype = self.pick("int64", "int32", "int16")
        return self.write(
            (6, self.whole(2, 9)),
            (1.5, f"-{self.whole(2, 9)}"),
            (1, "1"),
            (0.5, "1000003"),
            (0.5, "(1 << 33)"),
            (1, lambda: self.table(f"torch.tensor({self.pick(2, 3, 5, -3)}, dtype=torch.{dtype})")),
            (1, lambda: f"{self.numbers(self.H, low=1, high=9)}[h]"),
            (1, lambda: f"{self.numbers(self.longest, low=1, high=9)}[{self.position()}]"),
            (0.5, lambda: f"{self.numbers(self.longest, low=-9, high=-1, dtype=dtype)}[kv_idx]"),
            (0.7, lambda: f"({self.position()} + {self.whole(1, 4)})"),
            (0.5, lambda: f"((q_idx - kv_idx).abs() + {self.whole(1, 4)})"),
            (0.5, lambda: f"torch.clamp({self.integer(depth)}, min=1)"),
        )

    def integer_division(self, depth: int) -> str:
        value, divisor = self.integer(depth), self.divisor(depth)
        return self.write(
            (4, f"({value} // {divisor})"),
            (4, f"({value} % {divisor})"),
            (0.5, f"torch.div({value}, {divisor}, rounding_mode='floor')"),
            (0.5, f"torch.div({value}, {divisor}, rounding_mode='trunc')"),
            (0.4, f"torch.floor_divide({value}, {divisor})"),
            (0.4, f"torch.remainder({value}, {divisor})"),
            (0.5, f"torch.fmod({value}, {divisor})"),
        )

    def integer_unary(self, depth: int) -> str:
        value = self.integer(depth)
        return self.write(
            (2, f"({value}).abs()"),
            (1, f"torch.abs({value})"),
            (1, f"(-({value}))"),
            (0.5, f"torch.neg({value})"),
            (1, f"torch.square({value})"),
            (0.5, f"(({value}) ** 2)"),
            (0.2, f"(({value}) ** 3)"),
            (0.3, f"torch.sign({value})"),
            (0.5, f"({value}).to(torch.int32)"),
            (0.5, f"({value}).to(torch.int16)"),
            (0.3, f"({value}).to(torch.int8)"),
            (0.2, f"({value}).to(torch.uint8)"),
            (0.5, f"({value}).long()"),
            (0.3, f"({value}).int()"),
            (0.2, f"({value}).type(torch.int64)"),
            (0.2, f"({value}).{self.pick('short', 'char', 'byte')}()"),
            (0.2, f"({value}).to(device=q_idx.device, dtype=torch.{self.pick('int64', 'int32')})"),
            (0.2, f"({value}).{self.pick('type_as', 'to')}({self.position()})"),
            (0.2, f"({value}).to('cpu')"),
            (0.2, f"torch.{self.pick('clamp_min', 'clamp_max', 'clip')}({value}, {self.whole(-5, 30)})"),
            (1, f"({value}).clamp(-3, 11)"),
            (0.5, f"torch.clamp({value}, max=9)"),
            (0.5, f"({value}).clamp(min={self.whole(-5, 9)})"),
            (0.3, f"torch.relu({value})"),
            (0.2, f"(~({value}))"),
        )

    def integer_extremum(self, depth: int) -> str:
        first, second = self.integer(depth), self.integer(depth)
        return self.write(
            (3, f"torch.minimum({first}, {second})"),
            (3, f"torch.maximum({first}, {second})"),
            (1, f"torch.clamp({first}, min={second})"),
            (1, f"({first}).clamp(max={second})"),
            (0.5, f"torch.min({first}, {second})"),
            (0.5, f"({first}).max({second})"),
        )

    def integer_where(self, depth: int) -> str:
        condition, value = self.boolean(depth), self.integer(depth)
        return self.write(
            (4, lambda: f"torch.where({condition}, {value}, {self.operand(depth)})"),
            (1, f"torch.where({condition}, {self.whole(-5, 9)}, {value})"),
            (0.5, f"({value}).masked_fill({condition}, {self.whole(-5, 9)})"),
            (0.5, lambda: f"({value}).where({condition}, {self.integer(depth)})"),
        )

    def integer_lookup(self, depth: int) -> str:
        return self.lookup(depth, self.integer_table)

    def integer_scaled(self, depth: int) -> str:
        return f"({self.integer(depth)} {self.pick((4, '*'), (1, '+'), (1, '-'))} {self.chance.choice(HUGE)})"

    def integer_bits(self, depth: int) -> str:
        value = self.integer(depth)
        return self.write(
            (3, f"({value} & {self.pick(1, 3, 7, 15, 5, 12, -4)})"),
            (1, f"({value} | {self.whole(0, 9)})"),
            (1, f"({value} ^ {self.whole(0, 9)})"),
            (2, f"({value} >> {self.whole(0, 4)})"),
            (1, f"({value} << {self.whole(0, 4)})"),
            (1, lambda: f"({value} & {self.integer(depth)})"),
            (1, lambda: f"({value} ^ {self.integer(depth)})"),
            (0.5, lambda: f"torch.bitwise_and({value}, {self.integer(depth)})"),
            (0.3, f"torch.bitwise_right_shift({value}, {self.whole(0, 4)})"),
        )

    def integer_from_boolean(self, depth: int) -> str:
        value = self.boolean(depth)
        return self.write(
            f"({value}).int()",
            f"({value}).long()",
            f"({value}).to(torch.int64)",
            f"({value} * {self.whole(2, 9)})",
            lambda: f"({value} + {self.integer(depth)})",
        )

    def integer_stack(self, depth: int) -> str:
        """Two or three numbers stacked, then reduced to one or one of them taken."""

        def part() -> str:
            return f"({self.integer(depth)}).long()" if self.happens(0.6) else self.position()

        parts = ", ".join(part() for _ in range(self.whole(2, 3)))
        reduced = ("sum()", "amax(0)", "amin(-1)", "sum(dim=0)", "max(dim=0).values", "min()", "prod()")
        reduced = self.pick(
            (9, reduced), (1, ("sort().values[0]", "argmax()", "cumsum(0)[1]", "median()", "diff()[0]"))
        )
        chosen = self.pick((2, f".{self.pick(*reduced)}"), (1, f"[{self.pick('0', '-1', '1')}]"))
        return f"torch.stack([{parts}]){chosen}"

    def integer_count(self, depth: int) -> str:
        """How many captured boundaries a position has passed."""
        boundaries = self.positions(self.whole(1, 4))
        return self.write(
            lambda: f"(({self.integer(depth)}).unsqueeze(-1) >= {boundaries}).sum(-1)",
            f"(kv_idx[None] >= {boundaries}).{self.pick('long()', 'int()')}.sum()",
        )

    def integer_sorted_place(self, depth: int) -> str:
        """The same by binary search."""
        cuts = sorted(self.whole(0, self.longest) for _ in range(self.whole(1, 5)))
        boundaries = self.table(f"torch.tensor({cuts})")
        value = self.write((3, self.position), (1, lambda: f"({self.integer(depth)}).long()"))
        right = self.pick((4, ", right=True"), (4, ""), (1, ", out_int32=True"))
        return self.write(
            f"torch.searchsorted({boundaries}, {value}{right})", f"torch.bucketize({value}, {boundaries}{right})"
        )

    def integer_from_real(self, depth: int) -> str:
        value = f"({self.real(depth)}).clamp(-999, 999).nan_to_num(7.0)"
        return value + self.write(".long()", ".floor().to(torch.int32)", ".round().int()", ".ceil().long()")

    # floating point

    def real(self, depth: int) -> str:
        """A tensor expression of a floating dtype."""
        if self.spent(depth):
            return f"({self.integer_leaf(0)} * {self.pick('0.5', '0.1', '0.3', '0.25')})"
        inner = depth - 1
        return self.write(
            (3, lambda: f"({self.integer(inner)} * {self.pick('0.5', '0.1', '0.3', '1e-3', '1e9', '-0.7', '1.0')})"),
            (2, lambda: f"({self.integer(inner)} / {self.pick('2', '3', '7', '-3', '0.5')})"),
            (1, lambda: f"({self.integer(inner)} / {self.divisor(inner)})"),
            (0.5, lambda: f"({self.integer(inner)}).{self.pick('float()', 'double()')}"),
            (0.5, lambda: f"({self.integer(inner)}).to(torch.{self.pick('float16', 'bfloat16', 'float32')})"),
            (2, lambda: f"({self.real(inner)} {self.pick('+', '-', '*')} {self.real(inner)})"),
            (1, lambda: f"({self.real(inner)} {self.pick('+', '-', '*')} {self.integer(inner)})"),
            (3, lambda: self.lookup(inner, self.float_table)),
            (1, lambda: f"torch.sqrt({self.real(inner)})"),
            (1, lambda: f"({self.real(inner)}).{self.pick('abs', 'floor', 'ceil', 'round', 'square', 'neg')}()"),
            (0.5, lambda: f"torch.{self.pick('sign', 'trunc', 'relu', 'reciprocal', 'frac')}({self.real(inner)})"),
            (0.3, lambda: f"torch.{self.pick('true_divide', 'divide')}({self.integer(inner)}, {self.divisor(inner)})"),
            (0.2, lambda: f"torch.float_power({self.integer(inner)}, 2)"),
            (0.2, lambda: f"({self.real(inner)} ** {self.pick('2', '3', '0.5', '-1')})"),
            (1, lambda: f"torch.{self.pick('minimum', 'maximum')}({self.real(inner)}, {self.real(inner)})"),
            (1, lambda: f"({self.real(inner)}).clamp(-1.5, 7.25)"),
            (1, lambda: f"torch.where({self.boolean(inner)}, {self.real(inner)}, {self.pick('0.0', '2.5', '-1.5')})"),
            (0.5, lambda: f"({self.real(inner)} {self.pick('//', '%')} {self.pick('2', '3.0', '0.7', '-2')})"),
        )

    def number(self, depth: int) -> str:
        """An integer, one time in eight a float."""
        return self.real(depth) if self.happens(0.12) else self.integer(depth)

    # booleans

    def boolean(self, depth: int) -> str:
        """A tensor expression of dtype bool."""
        if self.spent(depth):
            if self.local_booleans and self.happens(0.3):
                return self.chance.choice(self.local_booleans)
            return f"({self.position()} {self.comparison()} {self.integer_leaf(0)})"
        chosen: Callable[[int], str] = self.pick(
            (9, self.boolean_comparison),
            (7, self.boolean_pair),
            (2, self.boolean_narrow),
            (2, self.boolean_negation),
            (1.5, self.boolean_logical),
            (2, self.boolean_lookup),
            (0.7, self.boolean_where),
            (0.7, self.boolean_equality),
            (0.7, self.boolean_cast),
            (0.6, self.boolean_stack),
            (0.6, self.boolean_vector),
            (0.15, self.boolean_membership),
            (1, self.boolean_document),
            (0.6, self.boolean_constant),
            (0.8, self.boolean_local),
        )
        return chosen(depth - 1)

    def comparison(self) -> str:
        return self.write((3, "<"), (2, "<="), (2, ">"), (3, ">="), (3, "=="), (1, "!="))

    def boolean_comparison(self, depth: int) -> str:
        first, second = self.number(depth), self.number(depth)
        if self.happens(0.2):
            second = self.write(self.whole(-6, 30), "0", "300", "(1 << 40)", "-1", "0.5")
        if self.happens(0.12):
            method = self.pick("lt", "le", "gt", "ge", "eq", "ne", "less", "greater_equal", "not_equal")
            return self.write(f"({first}).{method}({second})", f"torch.{method}({first}, {second})")
        if self.happens(0.06):
            return f"({self.whole(-6, 30)} {self.comparison()} {first})"
        return f"({first} {self.comparison()} {second})"

    def boolean_pair(self, depth: int) -> str:
        other = self.write((30, lambda: self.boolean(depth)), (1, "True"), (1, "False"))
        return f"({self.boolean(depth)} {self.pick((4, '&'), (3, '|'), (1, '^'))} {other})"

    def boolean_narrow(self, depth: int) -> str:
        """A tiny band: the kind of rule whose true positions a few samples do not meet."""
        distance, width = self.integer_difference(depth), self.whole(1, 3)
        return self.write(
            f"({distance}.abs() < {width})",
            f"({distance} == {self.whole(-self.longest, self.longest)})",
            f"(({distance} >= 0) & ({distance} < {width}))",
            f"({distance} % {self.whole(5, 17)} == {self.whole(0, 4)})",
            f"((q_idx == {self.whole(0, self.q_len)}) & (kv_idx == {self.whole(0, self.kv_len)}))",
            f"(q_idx * {self.kv_len} + kv_idx != {self.whole(0, self.q_len * self.kv_len)})",
        )

    def boolean_negation(self, depth: int) -> str:
        value = self.boolean(depth)
        return self.write((4, f"(~{value})"), (1, f"torch.logical_not({value})"), (0.5, f"torch.bitwise_not({value})"))

    def boolean_logical(self, depth: int) -> str:
        name = self.pick("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
        if self.happens(0.15):
            return f"({self.boolean(depth)}).{name}({self.boolean(depth)})"
        numeric = name.startswith("logical") and self.happens(0.2)
        return f"torch.{name}({self.boolean(depth)}, {(self.integer if numeric else self.boolean)(depth)})"

    def boolean_lookup(self, depth: int) -> str:
        return self.lookup(depth, self.boolean_table)

    def boolean_where(self, depth: int) -> str:
        first, second = self.boolean(depth), self.boolean(depth)
        other = self.write((4, lambda: self.boolean(depth)), (1, "False"), (1, "True"))
        return self.write(
            (4, f"torch.where({first}, {second}, {other})"),
            (1, f"({first}).where({second}, {other})"),
            (1, f"({first}).masked_fill({second}, {self.pick('True', 'False')})"),
        )

    def boolean_equality(self, depth: int) -> str:
        operator = self.pick((3, "=="), (3, "!="), "<=", "<", "+", "*", ">")
        return f"({self.boolean(depth)} {operator} {self.boolean(depth)})"

    def boolean_cast(self, depth: int) -> str:
        value = self.number(depth)
        finite = f"torch.isfinite({self.real(depth)})"
        return self.write(f"({value}).bool()", f"({value}).to(torch.bool)", f"({value} != 0)", finite)

    def boolean_stack(self, depth: int) -> str:
        parts = ", ".join(self.boolean(depth) for _ in range(self.whole(2, 3)))
        if self.happens(0.2):
            return f"torch.{self.pick('any', 'all')}(torch.stack([{parts}]), {self.pick('0', 'dim=-1')})"
        reduced = ("any(0)", "all(dim=0)", "any()", "all(-1)", "sum(0) >= 2", "sum() == 1", "int().max() > 0")
        return f"(torch.stack([{parts}]).{self.pick(*reduced)})"

    def boolean_vector(self, depth: int) -> str:
        """A position against a captured vector or a row of a table, then any or all."""

        def in_span() -> str:
            spans = self.positions(self.whole(1, 3), 2)
            return f"((kv_idx >= {spans}[:, 0]) & (kv_idx < {spans}[:, 1]) & (q_idx >= {spans}[:, 0])).any()"

        def between_rows() -> str:
            rows = self.positions(self.longest, 2, dtype=None)
            return f"({rows}[q_idx][0] <= {rows}[kv_idx][1])"

        return self.write(
            lambda: f"(({self.integer(depth)}).unsqueeze(-1) == {self.positions(self.pick(1, 2, 4))}).any(-1)",
            lambda: f"({self.position()}[..., None] < {self.positions(3, dtype='int32')}).all(dim=-1)",
            in_span,
            lambda: f"({self.positions(self.H, 3)}[h] == (q_idx - kv_idx)).any(-1)",
            lambda: f"({self.positions(self.longest, 2, dtype=None)}[q_idx] == kv_idx.unsqueeze(0)).any(dim=-1)",
            between_rows,
            "(q_idx.reshape(1) >= kv_idx).squeeze(0)",
            lambda: f"(q_idx.expand(3) - kv_idx > {self.numbers(3)}).all()",
            f"(torch.cat([q_idx.view(1), kv_idx.view(1)]).max() > {self.whole(0, self.longest)})",
            (0.5, lambda: f"(torch.arange(4) * 5 == {self.position()}).any()"),
        )

    def boolean_membership(self, depth: int) -> str:
        value = self.pick((3, self.position()), (1, "(q_idx - kv_idx)"))
        return f"torch.isin({value}, {self.positions(3)})"

    def boolean_document(self, depth: int) -> str:
        ids = self.document_ids(self.longest)
        return self.write(
            (3, f"({ids}[q_idx] == {ids}[kv_idx])"),
            (1, f"({ids}[q_idx] >= {ids}[kv_idx])"),
            (1, f"({ids}[kv_idx] != -1)"),
            (1, f"(({ids}[q_idx] - {ids}[kv_idx]).abs() <= 1)"),
        )

    def boolean_constant(self, depth: int) -> str:
        return self.write(
            "q_idx.new_ones((), dtype=torch.bool)",
            "b.new_zeros((), dtype=torch.bool)",
            "torch.ones_like(kv_idx, dtype=torch.bool)",
            "torch.zeros_like(q_idx, dtype=torch.bool)",
            "torch.full_like(q_idx, True, dtype=torch.bool)",
            "torch.tensor(True)",
            "(b == 0)",
            "(h == 1)",
            lambda: f"{self.boolean_table(self.H)}[h]",
            lambda: f"{self.boolean_table(self.B, self.H)}[b, h]",
        )

    def boolean_local(self, depth: int) -> str:
        """A named boolean, now and then changed in place, as loops over masks do."""
        value = self.boolean(depth)
        name = f"kept_{len(self.statements)}"
        self.statements.append(f"{name} = {value}")
        if self.happens(0.15):
            other = self.boolean(depth)
            self.statements.append(f"{name} {self.pick('&=', '|=')} {other}")
        self.local_booleans.append(name)
        return name
