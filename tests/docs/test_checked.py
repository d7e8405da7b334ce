"""What a page says of how its recipe was checked is what the tests and ``verify`` do with that recipe."""

from __future__ import annotations

import re

import pytest
import torch

from attn_mods import registry
from attn_mods.backend_checks import Problem
from attn_mods.verification import COMPILED, LENGTHS, _refused
from docs.generator.checked import how_checked
from docs.generator.examples import catalogue
from tests.fused.test_every_entry import UNFIT
from tests.test_entry_mutants import CLASSES
from tests.test_mask_grid import offsets_of

NAMES = [entry.name for entry in catalogue()]
MASKS = registry.names(kind="mask")
WITH_MUTANTS = {each.entry.name for each in CLASSES}
KINDS = {"lse": {"lse": True}, "gradients": {"inputs": True}, "output": {}}


def problem(name: str) -> Problem:
    """The case "tiny" as ``verify`` makes it."""
    case = registry.info(name).cases["tiny"]
    q_len, kv_len = (case.lengths or LENGTHS)[-1]
    return Problem.of(case.make(q_len, kv_len, "cpu"), q_len, kv_len, torch.float32)


def said(page: str, what: str) -> set[str]:
    """The backends that a page names behind the lines on something."""
    lines = re.findall(rf"^- The {what}, on .*?: (.*)\.$", page, re.MULTILINE)
    return {name for line in lines for name in re.findall(r"<code>(.*?)</code>", line.replace("&#95;", "_"))}


@pytest.mark.parametrize("name", NAMES)
def test_the_backends_are_those_that_verify_checks(name: str) -> None:
    page = how_checked(registry.info(name))
    for what, asked in KINDS.items():
        computing = {backend for backend, reason in _refused(problem(name), **asked).items() if reason is None}
        assert said(page, what) == computing, what
    every_case = re.findall(r"^- The output, on every case: (.*)\.$", page, re.MULTILINE)
    assert not any(f"<code>{name}</code>" in line for line in every_case for name in COMPILED)


@pytest.mark.parametrize("name", NAMES)
def test_cases_and_learned_tensors_are_named(name: str) -> None:
    entry = registry.info(name)
    first, gradients = (
        how_checked(entry).replace("&#95;", "_").splitlines()[0],
        how_checked(entry).split("gradients of ")[1],
    )
    assert re.findall(r"<code>(.*?)</code>", first) == list(entry.cases)
    floating = {key for key, tensor in problem(name).recipe.tensors().items() if tensor.dtype.is_floating_point}
    named = re.findall(r"<code>(.*?)</code>", gradients.split(" agree")[0].replace("&#95;", "_"))
    assert set(named) == {key.rpartition(".")[2] for key in floating}


@pytest.mark.parametrize("name", MASKS)
def test_kernel_offsets_and_picture_are_claimed_where_they_are_tested(name: str) -> None:
    entry = registry.info(name)
    page = how_checked(entry)
    assert ("a kernel generated from the rule finds the blocks" in page) == (name not in UNFIT)
    mask = problem(name).recipe.mask
    assert mask is not None
    assert ("first and last among the keys" in page) == (offsets_of(mask, 5, 45) != [None])
    rows = entry.picture.split()
    assert f"{len(rows)} x {len(rows[0])}, drawn by hand" in page


@pytest.mark.parametrize("name", NAMES)
def test_mutants_are_claimed_of_the_rules_that_have_them(name: str) -> None:
    page = how_checked(registry.info(name))
    assert ("Every comparison, operator and number of the rule" in page) == (name in WITH_MUTANTS)
    if name not in WITH_MUTANTS:
        parts = re.findall(r"composed of (.*?), whose", page)[0].split(" and ")
        titles = {registry.info(each).title for each in WITH_MUTANTS}
        assert len(parts) >= 2 and set(parts) <= titles


@pytest.mark.parametrize("name", registry.names(kind="score"))
def test_a_score_has_no_picture_and_no_blocks(name: str) -> None:
    page = how_checked(registry.info(name))
    assert "drawn by hand" not in page and "BlockMask" not in page
