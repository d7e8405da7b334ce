"""Random compositions of the masks that people write: the top layer of the random rules (see rules.py)."""

from __future__ import annotations

import random

from tests.tiles.rule_expressions import ExpressionWriter

Body = list[str]  # statements, and last the expression returned


class CompositionWriter(ExpressionWriter):
    """Writes well-known masks as functions, and joins them."""

    def __init__(self, chance: random.Random, B: int, H: int, q_len: int, kv_len: int) -> None:
        super().__init__(chance, B, H, q_len, kv_len)
        self.mask_lines: list[str] = []

    def composition(self) -> str:
        """One to four known masks, joined by operators or by torch's and_masks and or_masks."""
        names = [self.mask_function() for _ in range(self.whole(1, 4))]
        if self.happens(0.15):
            self.mask_lines.append(f"joined = {self.pick('and_masks', 'or_masks')}({', '.join(names)})")
            return self.call("joined")
        result = self.call(names[0])
        for name in names[1:]:
            operator, sign = self.pick((4, "&"), (4, "|"), (1, "^")), self.pick((4, ""), (1, "~"))
            result = f"({result} {operator} {sign}{self.call(name)})"
        return f"({result} & {self.boolean(2)})" if self.happens(0.2) else result

    def call(self, name: str) -> str:
        """The mask at its own positions, at shifted, swapped, coarser or periodic ones, or for one head."""
        offset, step, period = self.whole(0, 9), self.whole(2, 4), self.whole(3, 20)
        return self.write(
            (7, f"{name}(b, h, q_idx, kv_idx)"),
            (2, f"{name}(b, h, q_idx + {offset}, kv_idx)"),
            (1, f"{name}(b, h, q_idx, kv_idx + {offset})"),
            (1, f"{name}(b, h, kv_idx, q_idx)"),
            (1, f"{name}(b, h, q_idx // {step}, kv_idx // {step})"),
            (0.5, f"{name}(b, h * 0, q_idx % {period}, kv_idx % {period})"),
        )

    def mask_function(self) -> str:
        name = f"mask_{len(self.mask_lines)}"
        known = (
            (3, self.window),
            (2, self.prefix),
            (3, self.chunked),
            (1, self.grid),
            (1, self.block_diffusion),
            (2, self.bits_and_ratios),
            (2, self.padded),
            (1, self.window_per_head),
            (2, self.spans),
            (1, self.flagged),
            (3, self.documents),
            (2, self.block_selected),
            (1, self.pairwise),
        )
        body: Body = self.pick(*known)()
        lines = [f"    {line}" for line in body[:-1]] + [f"    return {body[-1]}"]
        self.mask_lines.append("\n".join([f"def {name}(b, h, q_idx, kv_idx):", *lines]))
        return name

    @property
    def covered(self) -> int:
        """How far tables must reach: ``call`` shifts positions by up to nine."""
        return self.longest + 10

    def window(self) -> Body:
        left, right = self.whole(1, 9), self.whole(2, 8)
        return self.chance.choice(
            [
                ["q_idx >= kv_idx"],
                [f"(q_idx >= kv_idx) & (q_idx - kv_idx < {left})"],
                [f"(q_idx - kv_idx).abs() <= {left}"],
                [f"(q_idx - kv_idx <= {left}) & (kv_idx - q_idx <= {right})"],
                [f"(q_idx >= kv_idx) & (torch.square(q_idx - kv_idx) < {left * left})"],
                [f"torch.where(h % 2 == 0, q_idx >= kv_idx, (q_idx - kv_idx).abs() < {left})"],
                ["distance = q_idx - kv_idx", f"(distance >= 0) & (distance < 24) & (distance % {right} == 0)"],
                [f"(q_idx - kv_idx) % {right} == 0"],
                ["assert isinstance(q_idx, torch.Tensor) and q_idx.dtype == kv_idx.dtype", f"q_idx < kv_idx + {right}"],
                ["kept = b.new_ones(q_idx.shape, dtype=torch.bool)", f"kept & (q_idx - kv_idx).ge({-right})"],
            ]
        )

    def prefix(self) -> Body:
        prefix, window = self.whole(1, 9), self.whole(2, 8)
        return self.chance.choice(
            [
                [f"(kv_idx < {prefix}) | (q_idx >= kv_idx)"],
                [f"(kv_idx < {prefix}) | ((q_idx >= kv_idx) & (q_idx - kv_idx < {window}))"],
                [f"(q_idx < {prefix}) == (kv_idx < {prefix})"],
            ]
        )

    def chunked(self) -> Body:
        chunk = self.whole(2, 12)
        return self.chance.choice(
            [
                [f"q_idx // {chunk} == kv_idx // {chunk}"],
                [f"q_idx // {chunk} >= kv_idx // {chunk}"],
                [f"(q_idx // {chunk} == kv_idx // {chunk}) & (q_idx >= kv_idx)"],
                [f"(kv_idx % {chunk} == {chunk - 1}) | (q_idx // {chunk} == kv_idx // {chunk})"],
            ]
        )

    def grid(self) -> Body:
        """Neighbours on a canvas, and tiles whose centre is clamped to it."""
        width = self.whole(2, 8)
        rows = max(1, self.longest // width - 2)
        return self.chance.choice(
            [
                [
                    f"q_row, q_column = q_idx // {width}, q_idx % {width}",
                    f"kv_row, kv_column = kv_idx // {width}, kv_idx % {width}",
                    "((q_row - kv_row).abs() <= 1) & ((q_column - kv_column).abs() <= 1)",
                ],
                [
                    f"center = (q_idx // {width}).clamp(1, {rows})",
                    f"(kv_idx // {width} >= center - 1) & (kv_idx // {width} <= center + 1)",
                ],
            ]
        )

    def block_diffusion(self) -> Body:
        half, block = max(1, self.longest // 2), self.whole(2, 8)
        return [
            f"q_block, kv_block = (q_idx % {half}) // {block}, (kv_idx % {half}) // {block}",
            f"q_noised, kv_noised = q_idx < {half}, kv_idx < {half}",
            "diagonal = (q_block == kv_block) & (q_noised == kv_noised)",
            "offset = (q_block > kv_block) & q_noised & ~kv_noised",
            "diagonal | offset | ((q_block >= kv_block) & ~q_noised & ~kv_noised)",
        ]

    def bits_and_ratios(self) -> Body:
        bits = self.whole(1, 4)
        return self.chance.choice(
            [
                [f"(q_idx & {2**bits - 1}) == (kv_idx & {2**bits - 1})"],
                [f"(q_idx >> {bits}) >= (kv_idx >> {bits})"],
                [f"(q_idx ^ kv_idx) < {2**bits + 1}"],
                [f"q_idx * {self.kv_len} >= kv_idx * {self.q_len}"],
                [f"q_idx / {self.q_len} >= kv_idx / {self.kv_len}"],
            ]
        )

    def padded(self) -> Body:
        lengths = self.numbers(self.B, low=0, high=self.covered, dtype=self.pick("int64", "int32"))
        return self.chance.choice(
            [
                [f"kv_idx < {lengths}[b]"],
                [f"length = {lengths}[b]", "(q_idx < length) & (kv_idx < length)"],
                [f"(kv_idx < {lengths}[b]) | (q_idx >= kv_idx)"],
                [f"kv_idx >= {self.covered} - {lengths}[b]"],
            ]
        )

    def window_per_head(self) -> Body:
        windows = self.numbers(self.H, low=1, high=20, dtype=self.pick("int64", "int32", "int16"))
        causal = f"(q_idx >= kv_idx) & (q_idx - kv_idx < {windows}[h])"
        return self.chance.choice([[causal], [f"(q_idx - kv_idx).abs() <= {windows}[h]"]])

    def spans(self) -> Body:
        """One run of keys a query, from tables of bounds."""
        random_positions = self.random_integers(self.covered, low=0, high=self.covered, dtype="int64")
        starts = self.table(f"{random_positions}{self.pick('.sort().values', '')}")
        lengths = self.numbers(self.covered, low=0, high=12, dtype=self.pick("int64", "int16"))
        return self.chance.choice(
            [
                [f"(kv_idx >= {starts}[q_idx]) & (kv_idx <= q_idx)"],
                [f"start = {starts}[q_idx]", f"(kv_idx >= start) & (kv_idx < start + {lengths}[q_idx])"],
                [f"kv_idx < {starts}[q_idx]"],
                [f"{starts}[kv_idx] <= q_idx"],
            ]
        )

    def flagged(self) -> Body:
        flags = self.boolean_table(self.covered)
        return self.chance.choice(
            [
                [f"{flags}[q_idx] | {flags}[kv_idx]"],
                [f"{flags}[kv_idx] & (q_idx >= kv_idx)"],
                [f"{flags}[(q_idx - kv_idx).abs()]"],
            ]
        )

    def documents(self) -> Body:
        ids = self.document_ids(self.covered)
        starts = self.table(f"torch.searchsorted({ids}.clamp(min=0), {ids}.clamp(min=0))")
        return self.chance.choice(
            [
                [f"{ids}[q_idx] == {ids}[kv_idx]"],
                [f"({ids}[q_idx] == {ids}[kv_idx]) & (q_idx >= kv_idx)"],
                [f"{ids}[q_idx] >= {ids}[kv_idx]"],
                [f"document = {ids}[q_idx]", f"(document == {ids}[kv_idx]) & (document != -1)"],
                [
                    f"local_q, local_kv = q_idx - {starts}[q_idx], kv_idx - {starts}[kv_idx]",
                    f"({ids}[q_idx] == {ids}[kv_idx]) & (local_q - local_kv < 5) & (local_q >= local_kv)",
                ],
            ]
        )

    def block_selected(self) -> Body:
        block = self.whole(2, 8)
        count = -(-self.covered // block)
        if self.happens(0.5):
            chosen = self.numbers(count, 2, low=0, high=count, dtype="int32")
            return [
                f"chosen = {chosen}[q_idx // {block}]",
                f"(chosen == (kv_idx // {block}).unsqueeze(-1)).any(dim=-1)",
            ]
        kept = self.boolean_table(self.H, count, count)
        chained = [f"{kept}[h][q_idx // {block}][kv_idx // {block}]"]
        return self.chance.choice([[f"{kept}[h, q_idx // {block}, kv_idx // {block}]"], chained])

    def pairwise(self) -> Body:
        pairs = self.boolean_table(self.covered, self.covered)
        return self.chance.choice([[f"{pairs}[q_idx, kv_idx]"], [f"{pairs}[kv_idx, q_idx] & (q_idx >= kv_idx)"]])
