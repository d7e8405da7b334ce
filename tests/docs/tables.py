"""Tables of Markdown as data."""

from __future__ import annotations


def table_below(page: str, line: str) -> list[dict[str, str]]:
    """The rows of the first table after a line of a page, by the titles of the columns; in what is folded away too."""
    unfolded = "\n".join(each.strip() for each in page.splitlines())
    lines = unfolded.split(f"\n{line}\n", 1)[1].splitlines()
    start = next(number for number, each in enumerate(lines) if each.startswith("|"))
    rows = []
    for each in lines[start:]:
        if not each.startswith("|"):
            break
        rows.append([cell.strip() for cell in each.strip("|").split("|")])
    titles, _, *body = rows
    return [dict(zip(titles, row, strict=True)) for row in body]
