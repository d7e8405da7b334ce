"""The command line: what it prints, and how it refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from rich.console import Console

from attn_mods import cli, description, drawing, masks, presentation, registry, scores
from attn_mods.entry_checks import Row
from attn_mods.mask import Mask
from attn_mods.verification import Report
from attn_mods.work import Work, count_work


def run(*arguments: str) -> Result:
    """Run ``attn-mods`` in this process, on a wide terminal."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli.main, list(arguments))


def refused(*arguments: str) -> str:
    """The message with which a command is refused: exit code 2 and no traceback."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.output


def test_list_names_every_entry() -> None:
    result = run("list")
    assert result.exit_code == 0
    assert f"{len(registry.names())} entries" in result.output
    for name in registry.names():
        assert re.search(rf"\b{name}\b", result.output), name


def test_list_filters() -> None:
    only_scores = run("list", "--kind", "score").output
    assert "softcap" in only_scores and "sliding_window" not in only_scores
    local = run("list", "--tag", "local").output
    assert "sliding_window" in local and "softcap" not in local


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "--tag", "causl"), "did you mean causal"),
        (("list", "--kind", "masks"), "did you mean mask"),
        (("show", "sliding_windw"), "did you mean sliding_window"),
        (("verify", "causl"), "did you mean causal"),
        (("explain", "alibbi"), "did you mean alibi"),
        (("show", "causal", "--case", "huge"), "causal: there is no case 'huge'; use one of tiny"),
        (("show", "causal", "--q-len", "4", "--kv-len", "8"), "pass q_offset=4 if the queries are the last 4"),
        (("show", "causal", "--q-len", "0"), "0 is not in the range"),
        (("show", "causal", "--block-size", "64by64"), "write 128, or 64x128"),
        (("show", "causal", "--block-size", "0"), "write 128, or 64x128"),
        (("verify", "causal", "--backend", "flx"), "did you mean flex"),
        (("explain", "causal", "--heads", "6", "--kv-heads", "4"), "multiple"),
        (("verify", "causal", "--device", "xla"), "'xla' cannot be used here"),
        (("explain", "causal", "--device", "nonsense"), "'nonsense' cannot be used here"),
        (("verify", "causal", "--device", "cuda:99"), "'cuda:99' cannot be used here"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_refusals_say_what_to_do(arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(*arguments)


@pytest.mark.parametrize("name", registry.names())
def test_show_prints_what_the_file_says(name: str) -> None:
    entry = registry.info(name)
    result = run("show", name, "--case", "tiny")
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert entry.summary in words
    assert " ".join(description.rule(entry).replace("``", "").split()) in words
    for paper in entry.papers:
        assert (paper.arxiv or paper.url or "") in words
    for model in entry.models:
        assert model.name in words
    for parameter in description.parameters(entry):
        assert f"{parameter}: " in words


def test_show_draws_the_picture_and_counts_blocks() -> None:
    output = run("show", "causal", "--q-len", "1024", "--block-size", "128x64").output
    assert "  2 ██████· · · · ·" in output
    assert "case bench: 1,024 queries x 1,024 keys" in output
    assert "blocks of 128 x 64: 128 = 56 empty + 16 mixed + 56 full" in output
    assert "pairs visible:  524,800 of 1,048,576 (50.0%)" in output
    assert "pairs computed: 589,824 (56.2%)" in output


def test_show_draws_few_tokens_one_by_one() -> None:
    output = run("show", "sliding_window", "--case", "one", "--q-len", "3").output
    assert "  0 ██· ·\n  1 · ██·\n  2 · · ██\n" in output


def test_show_places_the_queries() -> None:
    output = run("show", "causal", "--q-len", "2", "--kv-len", "4", "--q-offset", "2").output
    assert "  0 ██████·\n  1 ████████\n" in output


def test_show_without_unicode() -> None:
    command = [sys.executable, "-m", "attn_mods.cli", "show", "causal"]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin", "COLUMNS": "120"}
    environment["PYTHONPATH"] = str(Path(cli.__file__).parents[1])
    finished = subprocess.run(command, capture_output=True, env=environment, timeout=120, check=False)
    assert finished.returncode == 0, finished.stderr.decode()
    assert "  2 ######. . . . ." in finished.stdout.decode("ascii")


def test_show_draws_a_score_as_a_heat_map_or_as_values() -> None:
    heat = run("show", "alibi", "--case", "tiny").output
    values = drawing.score_map(registry.info("alibi").cases["tiny"].make(32, 32, "cpu"), 0.0, 32, 32)
    assert f"what a scaled q.k of 0 becomes: from {values.min():.4g} (blank) to {values.max():.4g} (solid)" in heat
    assert drawing.draw_heat(values) in heat
    assert re.search(r"100 +48\.2014", run("show", "softcap").output)


def test_explain_prints_the_backends() -> None:
    result = run("explain", "causal", "--q-len", "64", "--heads", "4", "--kv-heads", "2", "--dtype", "bfloat16")
    assert result.exit_code == 0, result.output
    assert "causal on cpu" in result.output
    assert re.search(r"flex\b", result.output) and re.search(r"eager\b", result.output)


def test_explain_says_what_training_needs() -> None:
    result = run("explain", "document", "--q-len", "64", "--training")
    assert re.search(r"flex +│ no +│ .*gradients on a CPU", result.output)
    assert re.search(r"eager +│ (yes|chosen)", result.output)


def test_verify_reports_ok(tmp_path: Path) -> None:
    result = run("verify", "causal", "softcap", "--backend", "eager")
    assert result.exit_code == 0, result.output
    assert "verified 2 entries" in result.output
    for name in ("causal", "softcap"):
        assert re.search(rf"{name} +│ +\d+ │ +0 │", result.output), result.output


def test_verify_in_a_half_type() -> None:
    result = run("verify", "causal", "--backend", "eager", "--dtype", "bfloat16", "--details")
    assert result.exit_code == 0, result.output
    assert "causal on cpu, bfloat16" in result.output


def test_verify_fails_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(name: str, device: str, backends: object, dtype: torch.dtype) -> Report:
        return Report(name, device, [Row("tiny", "rule = dense", "wrong", "differs at (0, 0, 1, 2)")])

    monkeypatch.setattr(cli, "verify_entry", wrong)
    result = run("verify", "causal")
    assert result.exit_code == 1
    assert "differs at (0, 0, 1, 2)" in result.output
    assert "failed: causal" in result.output


def test_verify_does_not_disguise_a_failure_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, device: str, backends: object, dtype: torch.dtype) -> Report:
        raise ValueError("a mistake in the package")

    monkeypatch.setattr(cli, "verify_entry", broken)
    result = run("verify", "causal")
    assert result.exit_code == 1
    assert isinstance(result.exception, ValueError)


def test_verify_covers_every_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def right(name: str, device: str, backends: object, dtype: torch.dtype) -> Report:
        seen.append(name)
        return Report(name, device, [Row("tiny", "rule = dense", "ok")])

    monkeypatch.setattr(cli, "verify_entry", right)
    assert run("verify").exit_code == 0
    assert seen == registry.names()


def test_installed_command_runs() -> None:
    """The command a user types, or where only the source is on the path, its module."""
    script = shutil.which("attn-mods", path=str(Path(sys.executable).parent))
    command = [script] if script else [sys.executable, "-m", "attn_mods.cli"]
    finished = subprocess.run(
        [*command, "list", "--tag", "packed"], capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "document" in finished.stdout
    finished = subprocess.run([*command, "show", "documnt"], capture_output=True, text=True, timeout=120, check=False)
    assert finished.returncode == 2
    assert "did you mean document" in finished.stderr and "Traceback" not in finished.stderr


@pytest.mark.parametrize("name", registry.names(kind="mask"))
def test_work_counts_what_dense_shows(name: str) -> None:
    entry = registry.info(name)
    case = entry.cases["tiny"]
    q_len, kv_len = (case.lengths or ((70, 70),))[0]
    mask: Mask = case.make(q_len, kv_len, "cpu")
    offset = None if q_len == kv_len or mask.frame != "self" else 0
    dense = mask.place(q_len, kv_len, offset).dense(q_len, kv_len)
    dense = dense.expand(*mask.batch_and_heads(), q_len, kv_len)
    work = count_work(mask, q_len, kv_len, q_offset=offset, block_size=(16, 32))
    assert work == work_by_hand(dense, (16, 32))


def work_by_hand(dense: torch.Tensor, block_size: tuple[int, int]) -> Work:
    """The same counts by cutting the dense mask into blocks."""
    counts = dict.fromkeys(("empty", "mixed", "full", "pairs_kept", "pairs_computed", "pairs"), 0)
    for rows in dense.split(block_size[0], -2):
        for block in rows.split(block_size[1], -1):
            for one in block.flatten(0, 1):
                kept, size = int(one.sum()), one.numel()
                counts["empty" if kept == 0 else "full" if kept == size else "mixed"] += 1
                counts["pairs_kept"] += kept
                counts["pairs_computed"] += size if kept else 0
                counts["pairs"] += size
    return Work(**counts)


@pytest.mark.parametrize(("q_len", "kv_len"), [(64, 64), (300, 300), (1000, 40)])
def test_overview_is_exact(q_len: int, kv_len: int) -> None:
    mask = masks.SlidingWindow(window=100)
    lines = drawing.draw_overview(mask, q_len, kv_len, q_offset=0).splitlines()
    queries, keys = drawing.overview_scale(q_len, kv_len)
    dense = mask.dense(q_len, kv_len)
    drawn = [
        "".join("·" if not block.any() else "█" if block.all() else "▒" for block in rows.split(keys, 1))
        for rows in dense.split(queries, 0)
    ]
    assert lines == drawn
    assert len(lines) <= 32 and max(map(len, lines)) <= 64


def test_heat_map_goes_from_blank_to_solid() -> None:
    assert drawing.draw_heat(torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])) == "  ░░▒▒▓▓██"
    assert drawing.draw_heat(torch.tensor([[1.0, float("-inf"), 3.0]])) == "    ██"


def test_score_map_is_the_score() -> None:
    score = scores.Softcap(cap=2.0)
    assert float(drawing.score_map(score, 1.0, 1, 1)) == pytest.approx(0.924234, abs=1e-6)


def test_rule_and_parameters_come_from_the_docstrings() -> None:
    entry = registry.info("sliding_window")
    assert description.rule(entry) == "keep (i, j) iff 0 <= i - j < window."
    assert list(description.parameters(entry)) == ["window"]
    assert description.parameters(entry)["window"].startswith("Keys seen, the query's own included; tokens, >= 1.")
    assert description.parameters(registry.info("causal")) == {}


def test_ascii_output_has_no_other_characters() -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(presentation.facts(registry.info("softcap")))
    assert capture.get().isascii()
