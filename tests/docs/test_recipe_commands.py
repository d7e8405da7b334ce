"""The commands on a recipe's page are such as the command lines take, and are about that recipe."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from attn_mods import cli
from benchmarks import __main__ as benchmarks
from benchmarks.attention import command as attention
from benchmarks.attention.command import Choice
from docs.generator.examples import catalogue
from docs.generator.records import of_entry

NAMES = [entry.name for entry in catalogue()]
VERIFY, MEASURE = "attn-mods ", "python -m benchmarks "
OF_A_RUN = r"(?<!run [0-9a-f]{12}: )"
"""What a record says of the run that it is of is history, which the code at hand need not understand."""

COMMAND = re.compile(
    rf"^(?P<line>(?:{VERIFY}|{MEASURE}).*)$|{OF_A_RUN}`(?P<inline>(?:{VERIFY}|{MEASURE})[^`]+)`", re.MULTILINE
)
QUICKLY_VERIFIED = ("anti_causal", "log_n_scale", "tree_verification")


def commands(page: str, start: str) -> list[list[str]]:
    """The arguments of every command on a page that begins so."""
    found = (match["line"] or match["inline"] for match in COMMAND.finditer(page))
    return [shlex.split(line.removeprefix(start)) for line in found if line.startswith(start)]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Choice]:
    """What the command line chooses to measure, which is not measured."""
    choices: list[Choice] = []
    monkeypatch.setattr(attention, "run", lambda choice, header, out: choices.append(choice))
    monkeypatch.setattr(benchmarks, "_header", lambda *_: {})
    return choices


def choice_of(arguments: list[str], device: str, chosen: list[Choice]) -> Choice:
    """What a command chooses to measure on a device."""
    result = CliRunner().invoke(benchmarks.main, [*arguments, "--device", device])
    assert result.exit_code == 0, f"{shlex.join(arguments)}: {result.output}"
    return chosen.pop()


@pytest.mark.parametrize("name", NAMES)
def test_the_command_to_verify_is_taken(pages: dict[str, str], name: str) -> None:
    ((subcommand, *arguments),) = commands(pages[f"{name}.md"], VERIFY)
    _, command, rest = cli.main.resolve_command(click.Context(cli.main), [subcommand, *arguments])
    assert command is cli.verify
    assert command.make_context(subcommand, rest).params["names"] == (name,)


@pytest.mark.parametrize("name", QUICKLY_VERIFIED)
def test_the_command_to_verify_verifies(pages: dict[str, str], name: str) -> None:
    (arguments,) = commands(pages[f"{name}.md"], VERIFY)
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    assert name in result.output and "failed" not in result.output


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", NAMES)
def test_the_commands_to_measure_choose_the_recipe(
    pages: dict[str, str], name: str, device: str, chosen: list[Choice]
) -> None:
    choices = [choice_of(each, device, chosen) for each in commands(pages[f"{name}.md"], MEASURE)]
    assert len(choices) == 1 + sum(len(of_card) for of_card in of_entry(name).values())
    for choice in choices:
        assert choice.names == (name,) and choice.device == device
        groups = choice.groups()
        assert groups and all(group.entry == name for group in groups)
        assert not choice.lengths or {group.shape.q_len for group in groups} == set(choice.lengths)


@pytest.mark.parametrize(
    ("line", "said"),
    [("run no_such_entry", "no_such_entry"), ("run causal --suit quick", "--suit"), ("run", "name what to measure")],
)
def test_a_wrong_command_is_noticed(line: str, said: str, chosen: list[Choice]) -> None:
    ((*arguments,),) = commands(f"```text\n{MEASURE}{line}\n```", MEASURE)
    with pytest.raises(AssertionError, match=said):
        choice_of(arguments, "cpu", chosen)


def test_the_command_of_a_run_is_no_command_for_the_reader() -> None:
    page = f"run 0123456789ab: `{MEASURE}run causal --since-removed`\n\nThis recipe alone: `{MEASURE}run causal`"
    assert commands(page, MEASURE) == [["run", "causal"]]
