"""A query sees the first tokens of the sequence (the attention sinks) and a window of recent ones.

Rule: keep (i, j) iff j <= i and (j < sink_tokens or i - j < window).
From: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", section 3.2.
Traps: ``window`` counts visible keys, the query's own included, sinks not; StreamingLLM shows at most recent_size of
them in its chat path and recent_size + 1 in its perplexity script. A sink is never seen before its time. StreamingLLM
also renumbers positions inside its cache, which no mask can do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attn_mods import checks
from attn_mods.band import Band
from attn_mods.entry import Case, Entry, Paper
from attn_mods.mask import Mask, MaskMod
from attn_mods.per_axis import Number, at, captured, dense_per_axis, size


@dataclass(frozen=True, eq=False)
class SinkPlusWindow(Mask):
    """Keep (i, j) iff j <= i and (j < sink_tokens or i - j < window).

    Args:
        sink_tokens: First tokens that stay visible, >= 0; StreamingLLM uses 4. An int, a 0-d integer tensor (changes
            without recompiling) or an integer tensor [H], one for each query head.
        window: Recent keys seen, the query's own included; tokens, >= 1; likewise.

    Shapes:
        Any q_len and kv_len; ``q_offset`` is required if they differ.

    Raises:
        ValueError: sink_tokens < 0, window < 1, or different numbers of heads.
        TypeError: A parameter that is neither an int nor an integer tensor.

    References:
        Xiao et al. 2023, arXiv 2309.17453, section 3.2, rolling KV cache with attention sinks.
    """

    sink_tokens: Number
    window: Number

    entry = Entry(
        title="Attention sinks plus window",
        summary="A query sees the first tokens of the sequence and a window of recent ones.",
        papers=(Paper("Efficient Streaming Language Models with Attention Sinks", "2309.17453", where="section 3.2"),),
        tags=frozenset({"causal", "local", "decoder", "streaming"}),
        picture="""
            x.......
            xx......
            xxx.....
            xxxx....
            xxxxx...
            xx.xxx..
            xx..xxx.
            xx...xxx
        """,
        cases={
            "tiny": Case(lambda q_len, kv_len, device: SinkPlusWindow(sink_tokens=2, window=3)),
            "one": Case(lambda q_len, kv_len, device: SinkPlusWindow(sink_tokens=1, window=1)),
            "no_sinks": Case(lambda q_len, kv_len, device: SinkPlusWindow(sink_tokens=0, window=33)),
            "wider_than_sequence": Case(lambda q_len, kv_len, device: SinkPlusWindow(kv_len + 2, kv_len + 7)),
            "tensor": Case(lambda q_len, kv_len, device: SinkPlusWindow(4, torch.tensor(40, device=device))),
            "per_head": Case(
                lambda q_len, kv_len, device: SinkPlusWindow(
                    torch.tensor([0, 20], device=device), torch.tensor([90, 5], device=device)
                )
            ),
            "bench": Case(lambda q_len, kv_len, device: SinkPlusWindow(4, window=max(1, min(1020, kv_len // 8)))),
        },
        traps=(
            "A rule that tests the sinks before causality lets the first queries see later sinks.",
            "This sink is visible tokens; the learned logit of gpt-oss, which no key has, is Recipe(sink=...).",
        ),
    )

    def __post_init__(self) -> None:
        remedy = "pass how many first tokens stay visible, 0 for none"
        checks.integer_field(self, "sink_tokens", 0, remedy, ndim=(0, 1))
        remedy = "count the query's own key, or use Causal() for an unbounded window"
        checks.integer_field(self, "window", 1, remedy, ndim=(0, 1))
        self.batch_and_heads()

    def mask_mod(self) -> MaskMod:
        """The rule j <= i and (j < sink_tokens or i - j < window)."""
        sink_tokens, window = captured(self.sink_tokens), captured(self.window)

        def sink_plus_window(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return (kv_idx <= q_idx) & ((kv_idx < at(sink_tokens, h)) | (q_idx - kv_idx < at(window, h)))

        return sink_plus_window

    def dense(self, q_len: int, kv_len: int) -> Tensor:
        """A band of ones whose first columns are causal, bool [q_len, kv_len], or [1, H, q_len, kv_len]."""
        causal = torch.ones(q_len, kv_len, dtype=torch.bool).tril()

        def band_and_columns(sink_tokens: int, window: int) -> Tensor:
            return torch.cat([causal[:, :sink_tokens], causal.triu(1 - window)[:, sink_tokens:]], dim=1)

        return dense_per_axis("H", band_and_columns, self.sink_tokens, self.window)

    def band(self) -> Band | None:
        """The window alone if there are no sinks; else None."""
        if isinstance(self.sink_tokens, Tensor) or isinstance(self.window, Tensor) or self.sink_tokens > 0:
            return None
        return Band(left=self.window - 1, right=0)

    def batch_and_heads(self) -> tuple[int, int]:
        """One head per parameter."""
        return 1, size(self.name, "H", self.sink_tokens, self.window)
