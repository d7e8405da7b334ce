"""Look-ups by name."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import attn_mods as am
from attn_mods import masks, scores
from tests.refusals import assert_refused


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


def test_a_field_that_is_computed_is_no_parameter() -> None:
    with pytest.raises(TypeError, match="document: the parameters are cu_seqlens, ids, padding, got total") as raised:
        am.get("document", total=3)
    assert isinstance(raised.value.__cause__, TypeError)
    with pytest.raises(TypeError, match="alibi: the parameters are num_heads, form, slopes, got heads"):
        am.get("alibi", heads=3)


def test_an_error_of_the_entry_itself_is_not_taken_for_a_wrong_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> None:
        raise TypeError("an argument of something inside")

    monkeypatch.setattr(masks.SlidingWindow, "__post_init__", broken)
    with pytest.raises(TypeError, match=r"^an argument of something inside$"):
        am.get("sliding_window", window=3)


@pytest.mark.parametrize("name", [3, None, ["causal"]], ids=str)
def test_a_name_must_be_a_text(name: object) -> None:
    with pytest.raises(TypeError, match=r"the name of an entry must be a text, got .*; pass one of attn_mods\.names"):
        am.info(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [3, ["causal"], ("mask",), b"mask", np.array(["mask"]), torch.ones(2)], ids=repr)
def test_words_must_be_texts(wrong: Any) -> None:
    assert_refused(lambda: am.find(wrong), TypeError, "^attn_mods: what is searched for must be a text, got .*; pass a")
    for keyword in ("kind", "tag"):
        message = f"^attn_mods: the {keyword} of an entry must be a text, got .*; use one of "
        assert_refused(lambda key=keyword: am.names(**{key: wrong}), TypeError, message)
    for look_up in (am.get, am.info, am.verify):
        message = r"^attn_mods: the name of an entry must be a text, got .*; pass one of attn_mods\.names"
        assert_refused(lambda call=look_up: call(wrong), TypeError, message)


def test_none_is_no_word_to_search_for() -> None:
    for look_up in (am.find, am.get, am.info, am.verify):
        with pytest.raises(TypeError, match=r"^attn_mods: .* must be a text, got None; pass"):
            look_up(None)


@pytest.mark.parametrize("wrong", ["eager", 3, [3], [None], {"eager": 1}, np.array(["eager"])], ids=repr)
def test_verify_takes_a_list_of_backends(wrong: Any) -> None:
    message = "^verify: backends must be a list of names, got .*; pass a list of some of flex, "
    assert_refused(lambda: am.verify("causal", backends=wrong), TypeError, message)


def test_near_misses_inside_a_users_compile() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda: am.get("causl"), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="no entry 'causl'; did you mean causal"):
        compiled()
    torch._dynamo.reset()


def test_a_composition_is_an_entry_without_a_class() -> None:
    cu_seqlens = torch.tensor([0, 3, 8])
    mask = am.get("document_causal", cu_seqlens=cu_seqlens)
    assert torch.equal(mask.dense(8, 8), (masks.Document(cu_seqlens) & masks.Causal()).dense(8, 8))
    assert torch.equal(mask.dense(8, 8), masks.document_causal(cu_seqlens).dense(8, 8))
    assert am.info("document_causal").kind == "mask"
    assert "document_causal" in am.find("packing")
    with pytest.raises(TypeError, match="document_causal: the parameters are cu_seqlens, got none"):
        am.get("document_causal")


def test_find_does_not_match_what_a_paper_lacks() -> None:
    assert am.find("none") == [name for name in am.names() if "none" in am.info(name).summary.lower()]


@pytest.mark.parametrize("text", ["Mistral", "2310.06825", "sliding_window", "MISTRAL 7b"])
def test_find_searches_papers_models_and_fields(text: str) -> None:
    assert "sliding_window" in am.find(text)


@pytest.mark.parametrize("name", am.names())
def test_c62_every_entry_pickles_and_copies(name: str) -> None:
    for case in am.info(name).cases.values():
        q_len, kv_len = (case.lengths or ((24, 24),))[0]
        part = case.make(q_len, kv_len, "cpu")
        for again in (copy.deepcopy(part), pickle.loads(pickle.dumps(part))):
            assert again.structure() == part.structure()
            assert again.integers() == part.integers()
            pairs = zip(again.tensors().values(), part.tensors().values(), strict=True)
            assert all(torch.equal(copied, own) for copied, own in pairs)
