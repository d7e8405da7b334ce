"""What an entry's docstrings say, for people: its rule and its parameters. The entry's file is the only source."""

from __future__ import annotations

import inspect
import re
import sys

from attn_mods.entry import Entry

_HEADING = re.compile(r"[A-Z][a-z]+:")


def rule(entry: Entry) -> str:
    """The "Rule:" of the docstring of the entry's file, as one line.

    Raises:
        LookupError: The file has none.
    """
    lines = iter(_file_docstring(entry).splitlines())
    found: list[str] = []
    for line in lines:
        if line.startswith("Rule:"):
            found.append(line.removeprefix("Rule:"))
            break
    for line in lines:
        if not line.strip() or _HEADING.match(line):
            break
        found.append(line)
    if not found:
        raise LookupError(f"{entry.name}: the docstring of its file has no line that starts with 'Rule:'")
    return " ".join(" ".join(found).split())


def parameters(entry: Entry) -> dict[str, str]:
    """The "Args:" of the docstring of what builds the entry: name to meaning, units and bounds, in order."""
    found: dict[str, str] = {}
    name = ""
    for line in _section(inspect.getdoc(entry.build) or "", "Args"):
        opening = re.match(r" {4}(\w+): *(.*)", line)
        if opening:
            name = opening.group(1)
            found[name] = opening.group(2)
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _file_docstring(entry: Entry) -> str:
    module = sys.modules[entry.build.__module__] if entry.build is not None else None
    return inspect.getdoc(module) or ""


def _section(docstring: str, title: str) -> list[str]:
    lines = docstring.splitlines()
    if f"{title}:" not in lines:
        return []
    start = lines.index(f"{title}:") + 1
    length = next((n for n, line in enumerate(lines[start:]) if line and not line.startswith(" ")), len(lines))
    return lines[start : start + length]
