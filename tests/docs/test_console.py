"""The commands on the hand-written pages and in the README are run, or it is said why not.

A text block directly below a console block is what its last command prints.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from attn_mods import cli
from benchmarks import __main__ as benchmarks
from tests.docs.test_hand_written_pages import PAGES, ROOT, blocks, hand_written, page_id, python_blocks

README_LINE = re.compile(r"^ {4}((?:make|attn-mods|python -m) .*)$", re.MULTILINE)
NOT_RUN = {
    "make": "it sets up an environment and runs for minutes; the tests are what it runs",
    "python -m benchmarks run": "it measures for minutes, on a card; tests/benchmarks runs it on a small suite",
    "python -m pytest": "it runs other tests of this very suite",
}
"""How the commands begin that are not run here, and why."""

OF_THE_GUIDE = "strided"
"""The entry that the reader of add_a_recipe.md writes: its commands are run where it is written."""

OPENING, CLOSING = "ALL = (\n", ")\n"
"""Of the list that the reader adds it to; the guide writes what is in it already as an ellipsis."""


@dataclass(frozen=True)
class Command:
    """One line for a shell.

    Attributes:
        page: Where it stands.
        line: The line, without the folder of the environment and without a comment.
        printed: What the page says it prints, or None if it says nothing.
    """

    page: str
    line: str
    printed: str | None = None

    def begins(self, start: str) -> bool:
        """Whether its first words are these."""
        words = start.split()
        return self.line.split()[: len(words)] == words


def commands() -> Iterator[Command]:
    """All that pages tell the reader to type."""
    for page in hand_written():
        for block in blocks(page, "console"):
            *first, last = [_plain(line) for line in block.code.strip().splitlines()]
            yield from (Command(page_id(page), line) for line in first)
            yield Command(page_id(page), last, block.printed)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    yield from (Command("README.md", _plain(line)) for line in README_LINE.findall(readme))


def _plain(line: str) -> str:
    words = shlex.split(line.strip().removeprefix("$ "), comments=True)
    return shlex.join(word.removeprefix(".venv/bin/") for word in words)


ALL = list(commands())
RUN = [each for each in ALL if not any(each.begins(start) for start in NOT_RUN)]
HERE = [each for each in RUN if OF_THE_GUIDE not in each.line]


def printed(command: Command) -> str:
    """What a command prints; it must end well."""
    program, *arguments = shlex.split(command.line)
    if program == "python":
        assert arguments[:2] == ["-m", "benchmarks"], command
        result = CliRunner().invoke(benchmarks.main, arguments[2:])
    else:
        assert program == "attn-mods", command
        result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, f"{command}: {result.output}"
    return result.output


def test_commands_are_found() -> None:
    assert {each.line for each in HERE} >= {"attn-mods verify sliding_window", "python -m benchmarks report"}
    assert all(any(each.begins(start) for each in ALL) for start in NOT_RUN), "a reason for a command that no page has"


@pytest.mark.parametrize("command", HERE, ids=lambda command: f"{command.page}: {command.line}")
def test_a_command_ends_well_and_prints_what_the_page_says(command: Command) -> None:
    output = printed(command)
    assert output.strip()
    if command.printed is not None:
        assert output.strip() == command.printed.strip()


def test_the_guide_to_a_recipe_can_be_followed(tmp_path: Path) -> None:
    guide = PAGES / "add_a_recipe.md"
    shutil.copytree(ROOT / "attn_mods", tmp_path / "attn_mods", ignore=shutil.ignore_patterns("__pycache__"))
    (code,) = (block.code for block in python_blocks(guide) if "class Strided" in block.code)
    masks = tmp_path / "attn_mods" / "masks"
    (masks / "strided.py").write_text(code, encoding="utf-8")
    listing = (masks / "__init__.py").read_text(encoding="utf-8")
    (added,) = (block.code for block in blocks(guide, "text") if "ALL = (" in block.code)
    imported, listed = added.split(f"{OPENING}    ...,\n")
    with_it = listing.replace(OPENING, f"{imported}{OPENING}{listed.removesuffix(CLOSING)}")
    (masks / "__init__.py").write_text(with_it, encoding="utf-8")
    lines = [each.line for each in RUN if OF_THE_GUIDE in each.line]
    assert len(lines) >= 2
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "attn-mods"
        command = [sys.executable, "-m", "attn_mods.cli", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert OF_THE_GUIDE in done.stdout.lower()
