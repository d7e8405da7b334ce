"""Texts of docstrings as HTML that Markdown leaves alone."""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterable

SIGNS = {
    "<=": "≤",
    ">=": "≥",
    "->": "→",
    " * ": " · ",
    " - ": " \N{MINUS SIGN} ",
    "-|": "\N{MINUS SIGN}|",
    "(-": "(\N{MINUS SIGN}",
    ", -": ", \N{MINUS SIGN}",
    "!=": "≠",
    "...": "…",
}
PIECES = re.compile(r"([A-Za-z_]\w*|\^\([^()]+\)|\^\w+(?:\[\w+\])?)")
INDEX = re.compile(r"[b-zB-Z]|x_\w")
MARKDOWN = str.maketrans({sign: f"&#{ord(sign)};" for sign in "*_[]|`~\\"})


def prose(text: str) -> str:
    """A sentence with ``code`` in it."""
    parts = re.split(r"``(.+?)``", text)
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def code(text: str) -> str:
    """Characters as code."""
    return f"<code>{_escaped(text)}</code>"


def scripted(sentence: str) -> str:
    """A sentence about what a script makes, which uncovers it: without one it would speak of what is not there."""
    return f'<span class="am-scripted" hidden>{sentence}</span>'


def bulleted(sentences: Iterable[str]) -> str:
    """A list of Markdown; empty if there are no sentences."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def formula(rule: str, parameters: Collection[str]) -> str:
    """A rule as one reads it: signs of mathematics, indices slanted, parameters as code, floors as brackets, powers."""
    text = rule.replace("``", "")
    for sign, written in SIGNS.items():
        text = text.replace(sign, written)
    return "".join(_piece(piece, parameters) for piece in PIECES.split(_floors(text)))


def _piece(piece: str, parameters: Collection[str]) -> str:
    if piece.startswith("^"):
        power = piece[1:].removeprefix("(").removesuffix(")") if piece.startswith("^(") else piece[1:]
        return f"<sup>{''.join(_piece(part, parameters) for part in PIECES.split(power))}</sup>"
    if piece in parameters:
        return code(piece)
    return f"<var>{_escaped(piece)}</var>" if INDEX.fullmatch(piece) else _escaped(piece)


def _floors(text: str) -> str:
    """``floor(x)`` with its brackets, innermost first."""
    start = text.rfind("floor(")
    while start >= 0:
        end = _closing(text, start + len("floor"))
        text = f"{text[:start]}⌊{text[start + len('floor(') : end]}⌋{text[end + 1 :]}"
        start = text.rfind("floor(")
    return text


def _closing(text: str, opening: int) -> int:
    depth = 0
    for position in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise ValueError(f"the rule {text!r} opens a bracket that it does not close")


def _escaped(text: str) -> str:
    return html.escape(text).translate(MARKDOWN)
