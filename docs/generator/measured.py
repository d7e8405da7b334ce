"""The measured speed of an entry, from committed benchmark records."""

from __future__ import annotations

from attn_mods.entry import Entry


def measured_speed(entry: Entry) -> str:
    """The section "Measured speed" of an entry's page, as Markdown."""
    return f"""Nothing is measured for this recipe yet. To measure it on your own card or processor:

```text
python -m benchmarks run {entry.name}
```"""
