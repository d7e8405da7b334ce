"""Look-ups by name."""

from __future__ import annotations

import pytest

import attn_mods as am
from attn_mods import masks, scores


def test_names_are_all_entries_once() -> None:
    listed = am.names()
    assert len(listed) == len(set(listed)) == len(masks.ALL) + len(scores.ALL)
    assert am.names(kind="mask") + am.names(kind="score") == listed


def test_tag_filters() -> None:
    packed = am.names(tag="packed")
    assert "document" in packed
    assert "causal" not in packed
    assert all("packed" in am.info(name).tags for name in packed)


def test_get_builds() -> None:
    mask = am.get("sliding_window", window=7)
    assert isinstance(mask, masks.SlidingWindow)
    assert mask.window == 7


def test_unknown_name_has_near_misses() -> None:
    with pytest.raises(KeyError, match="no entry 'sliding_windw'; did you mean sliding_window"):
        am.info("sliding_windw")
    with pytest.raises(KeyError, match=r"no entry 'zzzz'; see attn_mods\.names"):
        am.get("zzzz")


@pytest.mark.parametrize(("keyword", "value"), [("tag", "pakced"), ("kind", "msk")])
def test_unknown_filter(keyword: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"no entry has the {keyword} '{value}'; did you mean"):
        am.names(**{keyword: value})  # type: ignore[arg-type]


def test_unknown_parameter_names_the_right_ones() -> None:
    with pytest.raises(TypeError, match="sliding_window: the parameters are window, got windw"):
        am.get("sliding_window", windw=7)


@pytest.mark.parametrize("text", ["Mistral", "2310.06825", "sliding_window", "MISTRAL 7b"])
def test_find_searches_papers_models_and_fields(text: str) -> None:
    assert "sliding_window" in am.find(text)
