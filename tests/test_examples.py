"""Everything the documentation shows runs: the Python of README and CONTRIBUTING, and docs/examples."""

from __future__ import annotations

import importlib.util
import linecache
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from attn_mods import drawing, masks
from attn_mods.entry_checks import check_mask, check_picture

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language on a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run_blocks(page: str) -> dict[str, Any]:
    """Run the Python blocks of a page one after the other in one namespace, and return it."""
    module = ModuleType(f"blocks_of_{Path(page).stem}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    for number, block in enumerate(blocks(page, "python")):
        name = f"<block {number} of {page}>"
        linecache.cache[name] = (len(block), None, block.splitlines(keepends=True), name)
        exec(compile(block, name, "exec"), module.__dict__)
    return module.__dict__


def load_example(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), ROOT / "docs" / "examples" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return module


def test_readme_runs() -> None:
    namespace = run_blocks("README.md")
    assert len(blocks("README.md", "python")) >= 5
    assert namespace["block_mask"].seq_lengths == (4096, 4096)
    assert namespace["step"].shape == (1, 8, 1, 64)


def test_readme_picture_is_what_the_library_draws() -> None:
    mask = masks.SlidingWindow(window=4) & masks.Document.from_lengths([6, 4, 6])
    assert blocks("README.md", "text")[0].rstrip("\n") == drawing.draw_tokens(mask.dense(16, 16))


def test_recipe_of_contributing_is_a_right_entry() -> None:
    (block,) = blocks("CONTRIBUTING.md", "python")
    strided = run_blocks("CONTRIBUTING.md")["Strided"]
    assert strided.entry.name == "strided"
    assert f"attn_mods/masks/{strided.entry.name}.py" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert len(block.splitlines()) <= 120
    assert check_picture(strided.entry).outcome == "ok"
    for name, case in strided.entry.cases.items():
        rows = list(check_mask(name, case.make(200, 200, "cpu"), 200, 200))
        assert rows and all(row.outcome == "ok" for row in rows), rows
    with pytest.raises(ValueError, match="strided: stride must be >= 1, got 0"):
        strided(stride=0)
    assert torch.equal(strided(stride=1).dense(9, 9), masks.Causal().dense(9, 9))


def test_there_are_examples() -> None:
    assert [path.name for path in EXAMPLES] == ["packed_sentences.py"]


@pytest.mark.usefixtures("fresh_plans")
@pytest.mark.filterwarnings("ignore")  # of the libraries it imports
def test_packed_sentences(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It raises by itself if an embedding is off by more than 1e-5."""
    monkeypatch.setattr(sys, "argv", ["packed_sentences.py", "--repeats", "1"])
    load_example("packed_sentences.py").main()
    printed = capsys.readouterr().out
    page = (ROOT / "docs" / "examples" / "page.txt").read_text(encoding="utf-8").splitlines()
    assert len(page) >= 40
    assert f"{len(page)} sentences" in printed
    line = next(line for line in printed.splitlines() if "largest difference" in line)
    differences = [float(number) for number in re.findall(r"\d\.\de[-+]\d+", line)]
    assert len(differences) == 2 and max(differences) <= 1e-5
    assert re.search(r"backend\W+PyTorch SDPA\W+flex\W+flex", printed)


def test_packed_sentences_counts_are_exact() -> None:
    """The counts it prints, from the lengths of the sentences alone."""
    example = load_example("packed_sentences.py")
    lengths = [3, 130, 7, 1, 60]
    longest, total = max(lengths), sum(lengths)
    tokens = [torch.zeros(length, dtype=torch.int64) for length in lengths]
    padded, packed = example.padded(tokens), example.packed(tokens)
    assert padded.ids.shape == (len(lengths), longest)
    assert packed.ids.shape == (1, total)
    assert packed.positions[0, 2:5].tolist() == [2, 0, 1]
    work = example.count_work(padded.mask, longest)
    assert (work.pairs, work.pairs_kept) == (len(lengths) * longest**2, sum(longest * n for n in lengths))
    work = example.count_work(packed.mask, total)
    assert (work.pairs, work.pairs_kept) == (total**2, sum(n * n for n in lengths))


def test_packed_sentences_refuses_a_difference() -> None:
    example = load_example("packed_sentences.py")
    expected = torch.zeros(2, 3)
    assert example.difference("packed", expected + 9e-6, expected) < 1e-5
    for wrong in (expected + 2e-5, expected * float("nan")):
        with pytest.raises(RuntimeError, match="packed: embeddings differ"):
            example.difference("packed", wrong, expected)
