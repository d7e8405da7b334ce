"""The rule itself as Triton, at positions of one variable or of both: what torch computes there, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from attn_mods.fused.expressions import Text, expression, literal
from attn_mods.fused.form import Index, Literal, Number, Operand, Plain, Result, Step, Table, Unfit
from attn_mods.tiles.grid import BATCH, HEAD


def argument_names(form: Sequence[Step]) -> tuple[list[str], list[str]]:
    """Names of the integer and of the tensor arguments of a form, in the order of a call."""
    numbers: set[int] = set()
    tables: set[int] = set()
    for operand in _operands(form):
        if isinstance(operand, Number):
            numbers.add(operand.place)
        elif isinstance(operand, Index):
            numbers.add(operand.size)
        elif isinstance(operand, Table):
            tables.add(operand.place)
    return [f"number{place}" for place in sorted(numbers)], [f"table{place}" for place in sorted(tables)]


def table_dtypes(form: Sequence[Step]) -> dict[str, torch.dtype]:
    """Dtypes of the tensor arguments by name."""
    return {f"table{operand.place}": operand.dtype for operand in _operands(form) if isinstance(operand, Table)}


def _operands(form: Sequence[Step]) -> Iterator[Operand]:
    for step in form:
        for operand in step.operands:
            yield operand
            if isinstance(operand, Index):
                yield operand.value


class Points:
    """The steps of a form as lines of a kernel."""

    def __init__(self, form: Sequence[Step]) -> None:
        self.form = form

    def lines(self, wanted: Sequence[int], variables: Mapping[int, str], prefix: str, inside: str | None) -> list[str]:
        """Steps at positions.

        Args:
            wanted: Places of the steps asked for.
            variables: Names of the positions.
            prefix: Of the names of the values.
            inside: Which positions are real, where lookups out of range are to be noted.
        """
        lines: list[str] = []
        names = {**variables, BATCH: "b", HEAD: "h"}
        for place in self.needed(wanted):
            step = self.form[place]
            if step.operation == "index":
                variable = step.operands[0]
                assert isinstance(variable, Literal)
                text = names[int(variable.value)]
            elif step.operation == "lookup":
                text = self.lookup(step, f"{prefix}{place}", lines, prefix, inside)
            else:
                text = self.operation(step, prefix)
            lines.append(f"{prefix}{place} = {text}")
        return lines

    def needed(self, wanted: Sequence[int]) -> list[int]:
        """Places of all steps that the wanted ones need, operands first."""
        places = set(wanted)
        for place in range(len(self.form) - 1, -1, -1):
            if place in places:
                read = _operands([self.form[place]])
                places.update(operand.place for operand in read if isinstance(operand, Result))
        return sorted(places)

    def operation(self, step: Step, prefix: str) -> str:
        """An elementwise step."""
        split = len(step.operands) - len(step.keywords)
        if Plain(None) in step.operands[: split - 1]:
            raise Unfit(f"{step.operation} with None before another operand")
        if step.operation == "pow" and step.operands[1] == Literal(2, int):
            value = self.text(step.operands[0], prefix)
            return expression("square", step.dtype, [value], {})
        operands = [self.text(operand, prefix) for operand in step.operands[:split] if not isinstance(operand, Plain)]
        if step.operation == "literal":
            return operands[0].to(step.dtype)
        named = zip(step.keywords, step.operands[split:], strict=True)
        keywords = {name: self.text(operand, prefix) for name, operand in named if not isinstance(operand, Plain)}
        return expression(step.operation, step.dtype, operands, keywords)

    def text(self, operand: Operand, prefix: str) -> Text:
        """An operand as an expression."""
        if isinstance(operand, Result):
            return Text(f"{prefix}{operand.place}", self.form[operand.place].dtype)
        if isinstance(operand, Number):
            return Text(f"number{operand.place}", torch.int64)
        if isinstance(operand, Table):
            return _loaded(f"table{operand.place}", operand.dtype)
        if isinstance(operand, Literal):
            return literal(operand.value)
        raise Unfit("an operand that is no number")

    def lookup(self, step: Step, name: str, lines: list[str], prefix: str, inside: str | None) -> str:
        """An entry of a table; indices are kept inside it, and those that left it noted."""
        table, *indices = step.operands
        assert isinstance(table, Table)
        flat = ""
        for axis, index in enumerate(indices):
            assert isinstance(index, Index)
            entry, size = f"{name}_{axis}", f"number{index.size}"
            lines.append(f"{entry} = {self.text(index.value, prefix).to(torch.int64)}")
            if not index.inside:
                lines.append(f"{entry} = tl.where({entry} < 0, {entry} + {size}, {entry})")
                if inside is not None:
                    leaves = f"({inside} & (({entry} < 0) | ({entry} >= {size}))).to(tl.int32)"
                    # One number, of neither position, has no largest to a kernel.
                    lines.append(
                        f"outside = tl.maximum(outside, {leaves if inside == 'True' else f'tl.max({leaves})'})"
                    )
                lines.append(f"{entry} = tl.minimum(tl.maximum({entry}, 0), {size} - 1)")
            flat = f"({flat}) * {size} + {entry}" if flat else entry
        return _loaded(f"table{table.place} + {flat}", table.dtype).text


def _loaded(pointer: str, dtype: torch.dtype) -> Text:
    """A number from memory; booleans are bytes there."""
    return Text(f"(tl.load({pointer}) != 0)" if dtype == torch.bool else f"tl.load({pointer})", dtype)
