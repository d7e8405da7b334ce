"""The text of the two kernels of a form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods.fused.claims import Claims, Leaf, claims_of
from attn_mods.fused.expressions import Text, expression, literal
from attn_mods.fused.form import Step, Unfit
from attn_mods.fused.points import Points, argument_names, table_dtypes
from attn_mods.tiles.graph import Node
from attn_mods.tiles.grid import KEY, QUERY

ROWS, COLUMNS = 32, 64
"""Tiles of one program of the states kernel, along rows and columns; multiples of the codes in a byte."""

# Positions of an undecided tile evaluated at once.
_POSITIONS_AT_ONCE = 2048

_LARGEST, _SMALLEST = (1 << 63) - 1, -(1 << 63)


@dataclass(frozen=True, slots=True)
class Source:
    """The kernels of a form for one block size.

    Attributes:
        text: A module with the functions ``leaves`` and ``states``.
        row_slots: Numbers that the leaf kernel stores a row of tiles; 0 and no column slots mean it need not run.
        column_slots: Numbers it stores a column of tiles.
    """

    text: str
    row_slots: int
    column_slots: int


def source_of(form: Sequence[Step], block_size: tuple[int, int]) -> Source:
    """Generate the kernels.

    Raises:
        Unfit: An operation that has no expression.
    """
    claims = claims_of(form)
    writer = _Writer(form, claims, block_size)
    parts = ["import triton", "import triton.language as tl"]
    parts += ["from attn_mods.kernels.arithmetic import floor_divide, shift_left, shift_right"]
    parts += ["", *writer.leaf_kernel(), "", *writer.claim(), "", *writer.states_kernel(), ""]
    return Source("\n".join(parts), writer.slots(QUERY), writer.slots(KEY))


class _Writer:
    def __init__(self, form: Sequence[Step], claims: Claims, block_size: tuple[int, int]) -> None:
        self.form = form
        self.points = Points(form)
        self.claims = claims
        self.block = {QUERY: block_size[0], KEY: block_size[1]}
        numbers, tables = argument_names(form)
        self.numbers = numbers
        self.arguments = [*numbers, *tables]

    def side(self, variable: int) -> list[Leaf]:
        """The leaves that the leaf kernel computes of one variable."""
        return [leaf for leaf in self.claims.leaves if leaf.variable == variable]

    def slots(self, variable: int) -> int:
        """Numbers stored a tile row (column)."""
        return sum(len(leaf.parts) for leaf in self.side(variable))

    def head(self, name: str, *arguments: str) -> list[str]:
        """The first lines of a kernel: arguments, then batch and head of the program."""
        common = ["rows", "columns", "q_len", "kv_len", "q_offset", "kv_offset", "heads", *self.arguments]
        return [
            "@triton.jit",
            f"def {name}({', '.join([*arguments, *common])}):",
            "    pair = tl.program_id(1).to(tl.int64)",
            "    pairs = tl.num_programs(1)",
            "    b = pair // heads",
            "    h = pair % heads",
            *(f"    {number} = {number}.to(tl.int64)" for number in self.numbers),
        ]

    # The leaf kernel.

    def leaf_kernel(self) -> list[str]:
        """One program a row and a column of tiles, which reduces each leaf over the positions of the tile."""
        lines = self.head("leaves", "out", "status")
        lines += ["    tile = tl.program_id(0).to(tl.int64)", "    outside = tl.full((), 0, tl.int32)"]
        lines += ["    if tile < rows:", *_indented(self.leaf_side(QUERY, "q", "rows", "out"), 2)]
        start = f"(out + {self.slots(QUERY)} * pairs * rows)"
        lines += ["    else:", "        tile = tile - rows", *_indented(self.leaf_side(KEY, "kv", "columns", start), 2)]
        return [*lines, "    if outside > 0:", "        tl.atomic_or(status, 1)"]

    def leaf_side(self, variable: int, side: str, tiles: str, out: str) -> list[str]:
        """The leaves of one variable on one tile."""
        leaves = self.side(variable)
        if not leaves:
            return ["pass"]
        block = self.block[variable]
        width = _power_of_two(block)
        lines = [
            f"{side}_inner = tl.arange(0, {width})",
            f"{side}_place = tile * {block} + {side}_inner",
            f"{side}_inside = ({side}_inner < {block}) & ({side}_place < {side}_len)",
            f"{side} = tl.minimum({side}_place, {side}_len - 1) + {side}_offset",
        ]
        wanted = [leaf.place for leaf in leaves]
        lines += self.points.lines(wanted, {variable: side}, f"{side}_at", f"{side}_inside")
        if any("connected" in leaf.parts for leaf in leaves):
            lines += [
                f"{side}_has_next = ({side}_inner < {block - 1}) & ({side}_place + 1 < {side}_len)",
                f"{side}_next = tl.minimum({side}_place + 1, {side}_len - 1) + {side}_offset",
            ]
            lines += self.points.lines(wanted, {variable: f"{side}_next"}, f"{side}_next", None)
        slot = 0
        for leaf in leaves:
            for part in leaf.parts:
                lines.append(
                    f"tl.store({out} + ({slot} * pairs + pair) * {tiles} + tile, {self.reduced(leaf, part, side)})"
                )
                slot += 1
        return lines

    def reduced(self, leaf: Leaf, part: str, side: str) -> str:
        """One part of a leaf over the positions of a tile."""
        dtype = self.form[leaf.place].dtype
        value = Text(f"{side}_at{leaf.place}", dtype).to(torch.int64)
        if part in ("low", "every"):
            return f"tl.min(tl.where({side}_inside, {value}, {_LARGEST}), 0)"
        if part in ("high", "some"):
            return f"tl.max(tl.where({side}_inside, {value}, {_SMALLEST}), 0)"
        after = Text(f"{side}_next{leaf.place}", dtype).to(torch.int64)
        step = f"(tl.maximum({value}, {after}) - tl.minimum({value}, {after}))"  # negative where it overflows
        return f"tl.min(tl.where({side}_has_next, (({step} == 0) | ({step} == 1)).to(tl.int64), 1), 0)"

    # The claims on a tile.

    def inputs(self) -> list[str]:
        """What a claim reads: ends of the tile, parts of the leaves."""
        ends = ["q_first", "q_last", "kv_first", "kv_last"]
        return ends + [leaf.name(part) for leaf in self.claims.leaves for part in leaf.parts]

    def claim(self) -> list[str]:
        """A function from the values on tiles to their codes."""
        tables = [f"{name}_value" for name in self.scalar_tables()]
        lines = ["@triton.jit", f"def claim({', '.join([*self.inputs(), *self.numbers, *tables])}):"]
        for node in self.claims.nodes:
            if node.operation != "input":
                lines.append(f"    node{node.number} = {self.tile_operation(node)}")
        every, some, mixed = (
            self.tile_text(outcome).to(torch.bool)
            for outcome in (self.claims.every, self.claims.some, self.claims.mixed)
        )
        code = f"tl.where({every}, 1, tl.where({some}, tl.where({mixed}, 2, 3), 0))"
        return [*lines, f"    return ({code}).to(tl.int32)"]

    def scalar_tables(self) -> list[str]:
        """Tables of one number that the joint tier reads."""
        named = {node.arguments[0] for node in self.claims.nodes if node.operation == "input"}
        return [name for name in table_dtypes(self.form) if name in named]

    def tile_operation(self, node: Node) -> str:
        """One operation of the calculus."""
        operands = [self.tile_text(argument) for argument in node.arguments if not isinstance(argument, torch.dtype)]
        keywords = {
            name: self.tile_text(value)
            for name, value in node.keywords.items()
            if name not in ("rounding_mode", "dtype") and value is not None
        }
        return expression(node.operation, node.dtype, operands, keywords)

    def tile_text(self, value: object) -> Text:
        """An operand of the calculus."""
        if isinstance(value, Node):
            if value.operation != "input":
                return Text(f"node{value.number}", value.dtype)
            name = str(value.arguments[0])
            return Text(f"{name}_value" if name in self.scalar_tables() else name, value.dtype)
        if isinstance(value, Tensor) and value.numel() == 1:
            return literal(bool(value) if value.dtype == torch.bool else int(value))
        if isinstance(value, (bool, int)):
            return literal(value)
        raise Unfit(f"an operand of type {type(value).__name__}")

    # The states kernel.

    def states_kernel(self) -> list[str]:
        """One program a rectangle of tiles."""
        planes = ["codes", "row_bytes", "column_bytes", "column_plane", "whole_rows", "whole_columns"]
        lines = self.head("states", *planes, "leaf_values", "status")
        body = [
            f"column_groups = (columns + {COLUMNS - 1}) // {COLUMNS}",
            f"first_row = (tl.program_id(0) // column_groups).to(tl.int64) * {ROWS}",
            f"first_column = (tl.program_id(0) % column_groups).to(tl.int64) * {COLUMNS}",
            f"row = first_row + tl.arange(0, {ROWS})[:, None]",
            f"column = first_column + tl.arange(0, {COLUMNS})[None, :]",
            "real = (row < rows) & (column < columns)",
            "near_row = tl.minimum(row, rows - 1)",
            "near_column = tl.minimum(column, columns - 1)",
            "outside = tl.full((), 0, tl.int32)",
            *self.fixed_leaves(),
            "if outside > 0:",
            "    tl.atomic_or(status, 1)",
            *self.tile_leaves(),
            *self.whole_rectangle(),
            *self.places(),
            f"at_the_edge = (first_row + {ROWS} > whole_rows) | (first_column + {COLUMNS} > whole_columns)",
            "if (whole == 0) | ((whole == 1) & (at_the_edge == 0)):",
            "    constant = (whole * 85).to(tl.uint8)",  # 0b01010101: four full tiles
            "    tl.store(along_place, constant, mask=along_real)",
            "    tl.store(down_place, constant, mask=down_real)",
            "else:",
            f"    code = tl.zeros([{ROWS}, {COLUMNS}], tl.int32) + whole",
            "    if whole > 1:",
            f"        code = claim({', '.join(self.call_arguments())}) + tl.zeros([{ROWS}, {COLUMNS}], tl.int32)",
            "        code = tl.where(real, code, 0)",
            *_indented(self.settle(), 2),
            "    ragged = (row >= whole_rows) | (column >= whole_columns)",
            "    code = tl.where(real, tl.where(ragged & (code == 1), 2, code), 0)",
            *_indented(self.packed(), 1),
        ]
        return [*lines, *_indented(body, 1)]

    def call_arguments(self) -> list[str]:
        dtypes = table_dtypes(self.form)
        loaded = (f"tl.load({name}){' != 0' if dtypes[name] == torch.bool else ''}" for name in self.scalar_tables())
        return [*self.inputs(), *self.numbers, *loaded]

    def fixed_leaves(self) -> list[str]:
        """Values that depend on neither position."""
        leaves = self.side(0)
        lines = self.points.lines([leaf.place for leaf in leaves], {}, "fixed", "True") if leaves else []
        for leaf in leaves:
            step = self.form[leaf.place]
            wide = torch.bool if step.dtype == torch.bool else torch.int64
            lines.append(f"{leaf.name('value')} = {Text(f'fixed{leaf.place}', step.dtype).to(wide)}")
        return lines

    def tile_leaves(self) -> list[str]:
        """Values of the tiles of the rectangle, along rows and along columns."""
        lines = []
        for variable, side, near, start, tiles in self.sides():
            block = self.block[variable]
            lines += [
                f"{side}_first = {near} * {block} + {side}_offset",
                f"{side}_last = tl.minimum({near} * {block} + {block}, {side}_len) - 1 + {side}_offset",
            ]
            slot = 0
            for leaf in self.side(variable):
                for part in leaf.parts:
                    loaded = f"tl.load({start} + ({slot} * pairs + pair) * {tiles} + {near})"
                    lines.append(f"{leaf.name(part)} = {loaded}{'' if part in ('low', 'high') else ' != 0'}")
                    slot += 1
        return lines

    def sides(self) -> Iterator[tuple[int, str, str, str, str]]:
        """Of each variable its name, the tiles of the rectangle, where its leaves begin, and the number of tiles."""
        yield QUERY, "q", "near_row", "leaf_values", "rows"
        yield KEY, "kv", "near_column", f"leaf_values + {self.slots(QUERY)} * pairs * rows", "columns"

    def whole_rectangle(self) -> list[str]:
        """The code of the rectangle as one large tile, whose ends are the least and greatest of those of its tiles.

        Only 0 and 1 count: where all of it is known to be empty or full, its tiles are. Whether those ends occur at
        positions that meet is not known, so that its 2 claims nothing.
        """
        hull = {}
        for variable, side, first, size in ((QUERY, "q", "first_row", ROWS), (KEY, "kv", "first_column", COLUMNS)):
            block = self.block[variable]
            hull[f"{side}_first"] = f"{first} * {block} + {side}_offset"
            hull[f"{side}_last"] = f"tl.minimum(({first} + {size}) * {block}, {side}_len) - 1 + {side}_offset"
        for leaf in self.claims.leaves:
            for part in leaf.parts:
                name = leaf.name(part)
                if part == "low":
                    hull[name] = f"tl.min({name})"
                elif part == "high":
                    hull[name] = f"tl.max({name})"
                elif part in ("every", "connected"):
                    hull[name] = f"tl.min({name}.to(tl.int32)) > 0" if part == "every" else "tl.full((), 0, tl.int1)"
                elif part == "some":
                    hull[name] = f"tl.max({name}.to(tl.int32)) > 0"
        arguments = [hull.get(argument, argument) for argument in self.call_arguments()]
        return [f"whole = claim({', '.join(arguments)})"]

    def settle(self) -> list[str]:
        """Evaluate the rule at the positions of each undecided tile until it has kept one and dropped one."""
        q_block, kv_block = self.block[QUERY], self.block[KEY]
        kv_width = _power_of_two(kv_block)
        q_step = max(1, min(_power_of_two(q_block), _POSITIONS_AT_ONCE // kv_width))
        root = len(self.form) - 1
        return [
            f"tile = tl.arange(0, {ROWS})[:, None] * {COLUMNS} + tl.arange(0, {COLUMNS})[None, :]",
            "left = tl.sum((code == 3).to(tl.int32))",
            "while left > 0:",
            f"    picked = tl.min(tl.where(code == 3, tile, {ROWS * COLUMNS}))",
            f"    q_start = (first_row + picked // {COLUMNS}) * {q_block}",
            f"    kv_start = (first_column + picked % {COLUMNS}) * {kv_block}",
            "    kept = tl.full((), 0, tl.int32)",
            "    dropped = tl.full((), 0, tl.int32)",
            "    done = tl.full((), 0, tl.int32)",
            f"    while (done < {q_block}) & (kept + dropped < 2):",
            f"        q_inner = done + tl.arange(0, {q_step})[:, None]",
            f"        kv_inner = tl.arange(0, {kv_width})[None, :]",
            f"        here = (q_inner < {q_block}) & (q_start + q_inner < q_len)",
            f"        here = here & (kv_inner < {kv_block}) & (kv_start + kv_inner < kv_len)",
            "        q = tl.minimum(q_start + q_inner, q_len - 1) + q_offset",
            "        kv = tl.minimum(kv_start + kv_inner, kv_len - 1) + kv_offset",
            *_indented(self.points.lines([root], {QUERY: "q", KEY: "kv"}, "at", None), 2),
            f"        kept = tl.maximum(kept, tl.max((here & at{root}).to(tl.int32)))",
            f"        dropped = tl.maximum(dropped, tl.max((here & (at{root} == 0)).to(tl.int32)))",
            f"        done += {q_step}",
            "    code = tl.where(tile == picked, kept * (1 + dropped), code)",
            "    left -= 1",
        ]

    def places(self) -> list[str]:
        """Where the bytes of the rectangle go, along rows and along columns, and which of them are there."""
        return [
            f"along_byte = first_column // 4 + tl.arange(0, {COLUMNS // 4})[None, :]",
            "along_place = codes + (pair * rows + row) * row_bytes + along_byte",
            "along_real = (row < rows) & (along_byte < row_bytes)",
            f"down_byte = first_row // 4 + tl.arange(0, {ROWS // 4})[:, None]",
            "down_place = codes + column_plane + (pair * columns + column) * column_bytes + down_byte",
            "down_real = (column < columns) & (down_byte < column_bytes)",
        ]

    def packed(self) -> list[str]:
        """Four codes a byte, along rows and along columns."""
        shift = "(2 * tl.arange(0, 4))"
        return [
            f"along = tl.reshape(code, [{ROWS}, {COLUMNS // 4}, 4]) << {shift}[None, None, :]",
            "tl.store(along_place, tl.sum(along, 2).to(tl.uint8), mask=along_real)",
            f"down = tl.reshape(code, [{ROWS // 4}, 4, {COLUMNS}]) << {shift}[None, :, None]",
            "tl.store(down_place, tl.sum(down, 1).to(tl.uint8), mask=down_real)",
        ]


def _indented(lines: Sequence[str], levels: int) -> list[str]:
    return [" " * 4 * levels + line for line in lines]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
