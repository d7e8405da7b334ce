"""Tables of what was measured: read as written, the nearest case, and the choice that follows from it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import attn_mods as am
from attn_mods import backends, dispatch, masks, scores, tuning
from attn_mods.backends import Shapes
from attn_mods.tuning import Measured, Table, file_name, nearest, read, table_for, write
from tests.attention_inputs import inputs


def shapes(length: int, head_dim: int = 64, heads: int = 16) -> Shapes:
    return Shapes(1, heads, heads, length, length, head_dim, head_dim)


def causal(length: int, ms: dict[str, float]) -> Measured:
    return Measured("causal", "forward", shapes(length), "float32", False, ms)


TABLE = Table(
    "Example GPU 80GB",
    "2.13.0",
    (
        causal(1024, {"flex": 2.0, "sdpa_math": 1.0, "sdpa_flash": 3.0}),
        Measured("causal", "forward", shapes(16_384), "float32", False, {"flex": 1.0, "sdpa_math": 2.0}, {"flex": 0.5}),
        Measured("causal", "forward", shapes(16_384, head_dim=128), "float32", False, {"eager": 1.0}),
        Measured("causal", "forward_backward", shapes(1024), "float32", False, {"eager": 1.0, "sdpa_math": 2.0}),
        Measured("causal with alibi", "forward", shapes(1024), "float32", True, {"sdpa_cudnn": 0.5, "eager": 1.0}),
    ),
    ("one", "another"),
)


@pytest.mark.parametrize(
    ("length", "head_dim", "found"),
    [(1, 64, 0), (1024, 64, 0), (2048, 64, 0), (8192, 64, 1), (1 << 20, 64, 1), (16_384, 128, 2), (16_384, 256, 2)],
)
def test_nearest(length: int, head_dim: int, found: int) -> None:
    assert nearest(TABLE, "causal", shapes(length, head_dim), torch.float32, False) is TABLE.rows[found]


def test_of_two_as_near_the_larger_is_taken() -> None:
    assert nearest(TABLE, "causal", shapes(4096), torch.float32, False) is TABLE.rows[1]


@pytest.mark.parametrize(
    ("asked", "order"),
    [
        (shapes(1024), ["flash4", "flex", "eager"]),  # 0.5 + 0.25, 2 + 0.5, 5 + 2.5
        (shapes(2048), ["flash4", "flex", "eager"]),  # 2 + 1, 4 + 2, 20 + 10
        (shapes(512), ["flash4", "eager", "flex"]),  # 0.125 + 0.0625, 1.25 + 0.625, 2 + 0.125
        (shapes(1024, heads=4), ["flash4", "eager", "flex"]),
        (shapes(1024, head_dim=16), ["flash4", "eager", "flex"]),
        (Shapes(4, 16, 16, 512, 512, 64, 64), ["flash4", "flex", "eager"]),
        (shapes(0), ["flash4", "eager", "flex"]),
    ],
    ids=str,
)
def test_order_by_host_and_device(asked: Shapes, order: list[str]) -> None:
    times = {"flex": 3.0, "flash4": 1.0, "eager": 5.0}
    device, host = {"flex": 1.0, "flash4": 0.5}, {"flex": 2.0}
    measured = Measured("causal", "forward", shapes(1024), "float32", False, times, device, host)
    assert measured.fastest_first(asked) == order


def test_the_device_decides_between_hosts_that_cost_the_same() -> None:
    times, device, host = {"flex": 3.0, "flash4": 1.1}, {"flex": 0.2, "flash4": 1.0}, {"flex": 1.0, "flash4": 0.8}
    measured = Measured("causal", "forward", shapes(1024), "float32", False, times, device, host)
    assert measured.fastest_first(shapes(1024)) == ["flex", "flash4"]
    assert measured.fastest_first(shapes(512)) == ["flash4", "flex"]
    assert measured.fastest_first(shapes(900)) == ["flex", "flash4"]
    assert measured.fastest_first(shapes(2048)) == ["flex", "flash4"]


def test_times_in_words() -> None:
    times, device, host = {"flex": 1.234, "eager": 20.0, "flash4": 0.5}, {"flex": 1.2}, {"flex": 0.25, "eager": 3.0}
    measured = Measured("causal", "forward", shapes(1024), "float32", False, times, device, host)
    assert measured.times("flex") == "1.23 ms (device 1.2, host 0.25)"
    assert measured.times("eager") == "20 ms (host 3)"
    assert measured.times("flash4") == "0.5 ms"


def test_bfloat16_stands_in_for_float16_and_not_the_other_way_round() -> None:
    def row(length: int, dtype: str) -> Measured:
        return Measured("full", "forward", shapes(length), dtype, False, {})

    rows = row(1024, "float16"), row(8192, "bfloat16"), row(1024, "float32"), row(1024, "bfloat16"), row(16, "float16")
    table = Table("card", "2.13.0", rows)
    for length, dtype, found in (
        (1024, torch.float16, 0),
        (1024, torch.bfloat16, 3),
        (2048, torch.float16, 0),
        (16, torch.bfloat16, 3),
        (8192, torch.float16, 1),
        (8192, torch.float32, 2),
    ):
        assert nearest(table, "full", shapes(length), dtype, False) is rows[found]


def test_heads_count_less_than_lengths() -> None:
    sizes = shapes(1024, heads=32), shapes(16_384, heads=16)
    table = Table("card", "2.13.0", tuple(Measured("full", "forward", each, "float32", False, {}) for each in sizes))
    assert nearest(table, "full", shapes(1024, heads=16), torch.float32, False) is table.rows[0]


@pytest.mark.parametrize(
    ("recipe", "dtype", "training"),
    [
        ("sliding_window", torch.float32, False),
        ("causal", torch.float16, False),
        ("causal with alibi", torch.float32, True),
    ],
)
def test_nothing_alike(recipe: str, dtype: torch.dtype, training: bool) -> None:
    assert nearest(TABLE, recipe, shapes(1024), dtype, training) is None


def test_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / file_name(TABLE.card)
    assert path.name == "example-gpu-80gb.json"
    assert read(path) is None
    write(path, TABLE)
    found = read(path)
    assert found is not None
    assert (found.card, found.torch, found.rows) == (TABLE.card, TABLE.torch, TABLE.rows)
    assert found.runs == TABLE.runs == ("one", "another")
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(TABLE.rows) + 2


ROW = {"recipe": "causal", "what": "forward", "shapes": [1, 2, 2, 8, 8, 4, 4], "dtype": "float32", "has_score": False}
DAMAGED = {
    "cut": '{"card": "a", "torch"',
    "a list": "[]",
    "no rows": {"card": "a", "torch": "2", "runs": []},
    "no times": [ROW],
    "empty times": [ROW | {"ms": {}}],
    "an unknown key": [ROW | {"ms": {"flex": 1.0}, "colour": "red"}],
    "text": [ROW | {"ms": {"flex": "fast"}}],
    "nothing": [ROW | {"ms": {"flex": None}}],
    "below zero": [ROW | {"ms": {"flex": -5.0}}],
    "not a number": [ROW | {"ms": {"flex": 1.0}, "host_ms": {"flex": math.nan}}],
    "true": [ROW | {"ms": {"flex": True}}],
    "beyond all numbers": [ROW | {"ms": {"flex": 10**400}}],
    "a list of times": [ROW | {"ms": [1.0]}],
    "no time of the device": [ROW | {"ms": {"flex": 1.0}, "device_ms": None}],
    "a device without a call": [ROW | {"ms": {"flex": 1.0}, "device_ms": {"eager": 1.0}}],
    "another pass": [ROW | {"ms": {"flex": 1.0}, "what": "sideways"}],
    "another dtype": [ROW | {"ms": {"flex": 1.0}, "dtype": "bf16"}],
    "a word for a kind": [ROW | {"ms": {"flex": 1.0}, "has_score": "no"}],
    "a number for a name": [ROW | {"ms": {"flex": 1.0}, "recipe": 3}],
    "a row twice": [ROW | {"ms": {"flex": 1.0}}] * 2,
    "no row": [],
    "no tokens": [ROW | {"ms": {"flex": 1.0}, "shapes": [1, 2, 2, 0, 8, 4, 4]}],
    "six sizes": [ROW | {"ms": {"flex": 1.0}, "shapes": [1, 2, 2, 8, 8, 4]}],
    "an unknown backend": [ROW | {"ms": {"flash9": 1.0}}],
}


@pytest.mark.parametrize("content", list(DAMAGED.values()), ids=list(DAMAGED))
def test_a_damaged_table_is_named_with_its_remedy(content: object, tmp_path: Path) -> None:
    whole = {"card": "a", "torch": "2", "runs": [], "rows": content} if isinstance(content, list) else content
    path = tmp_path / "a.json"
    path.write_text(whole if isinstance(whole, str) else json.dumps(whole), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"a\.json: it must be a table of measurements, got .*; make it from records by"
    ):
        read(path)


def test_the_table_of_another_card_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FOLDER", tmp_path)
    for card in (TABLE.card, TABLE.card.lower()):
        write(tmp_path / file_name(card), TABLE)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, card=card: card)
        if card == TABLE.card:
            assert table_for(torch.device("cuda", 0)) == read(tmp_path / file_name(card))
        else:
            with pytest.raises(ValueError, match="the table must be of example gpu 80gb, got one of Example GPU 80GB"):
                table_for(torch.device("cuda", 0))
    table_for.cache_clear()


def test_no_table_for_a_cpu() -> None:
    assert table_for(torch.device("cpu")) is None


def test_committed_tables_and_one_written_now(tmp_path: Path) -> None:
    write(tmp_path / file_name(TABLE.card), TABLE)
    names = {backend.name for backend in backends.ALL}
    for path in (*tmp_path.glob("*.json"), *tuning.FOLDER.glob("*.json")):
        table = read(path)
        assert table is not None and path.name == file_name(table.card)
        assert table.rows
        assert all(row.ms and row.ms.keys() <= names for row in table.rows), path.name


class TestAuto:
    @pytest.fixture(autouse=True)
    def table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dispatch, "table_for", lambda device: TABLE)

    def test_the_fastest_is_taken(self) -> None:
        assert am.explain(*inputs(900, head_dim=64), masks.Causal()).chosen == "sdpa_math"
        assert am.explain(*inputs(9000, head_dim=64, batch=1), masks.Causal()).chosen == "flex"

    def test_one_that_does_not_run_here_is_passed_over(self) -> None:
        recipe = am.Recipe(masks.Causal(), scores.Alibi(num_heads=4))
        assert am.explain(*inputs(900), recipe).chosen == "eager"
        assert am.explain(*inputs(900), masks.Causal(), return_lse=True).chosen == "eager"

    def test_one_that_holds_a_matrix_is_taken_up_to_the_length_measured(self) -> None:
        q, k, v = inputs(2000, head_dim=64, batch=1)
        assert am.explain(q, k, v, masks.Causal()).chosen == "flex"
        assert am.explain(*inputs(1024, head_dim=64, batch=1), masks.Causal()).chosen == "sdpa_math"

    def test_training_goes_by_times_of_training(self) -> None:
        q, k, v = inputs(900)
        assert am.explain(q.requires_grad_(), k, v, masks.Causal()).chosen == "eager"

    def test_what_was_not_measured_goes_by_the_fixed_order(self) -> None:
        told = am.explain(*inputs(900), masks.SlidingWindow(5))
        assert told.chosen == "flex"
        assert told.note == (
            "auto: sliding_window was not measured on this card in torch.float32, so a fixed order decides"
        )

    def test_explain_shows_the_numbers(self) -> None:
        q, k, v = (torch.randn(1, 16, 1024, 64) for _ in range(3))
        case = "causal with the parameters of its benchmark, 1,024 x 1,024, B=1 Hq=16 D=64, float32"
        for length, words in (
            (1024, "the fastest of those measured on this card"),
            (
                512,
                "the fastest by the nearest case measured on this card, scaled to these sizes; "
                "the times are those of the case itself",
            ),
        ):
            told = am.explain(q[:, :, :length], k[:, :, :length], v[:, :, :length], masks.Causal())
            measured = {row.backend: row.measured for row in told.rows if row.measured != "not measured"}
            assert measured == {"flex": "2 ms", "sdpa_flash": "3 ms", "sdpa_math": "1 ms"}
            assert told.note == f"auto: {words}: {case}"

    def test_a_choice_that_was_not_measured_is_said(self) -> None:
        told = am.explain(*inputs(9000, head_dim=128, batch=1), masks.Causal(), invariant=True)
        assert told.chosen == "flex"
        assert told.note.startswith("auto: none of those measured on this card computes this, so a fixed order decides")

    def test_a_choice_whose_time_on_a_shorter_sequence_does_not_count_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            dispatch, "table_for", lambda device: Table("card", "2.13.0", (causal(512, {"eager": 1.0}),))
        )
        q, k, v = (torch.randn(1, 16, 1024, 64) for _ in range(3))
        told = am.explain(q, k, v, masks.Causal(), return_lse=True)
        assert told.chosen == "eager"
        assert told.note.startswith(
            "auto: none of those measured on this card computes this but with a matrix of all pairs, timed on a "
            "shorter sequence, so a fixed order decides; measured: causal"
        )

    def test_the_same_where_what_the_fixed_order_takes_was_not_measured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            dispatch, "table_for", lambda device: Table("card", "2.13.0", (causal(512, {"eager": 1.0}),))
        )
        told = am.explain(*(torch.randn(1, 16, 1024, 64) for _ in range(3)), masks.Causal())
        assert told.chosen not in (None, "eager")
        assert "computes this but with a matrix of all pairs, timed on a shorter sequence" in told.note

    def test_the_order_is_that_of_the_sizes_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        times, device, host = {"flex": 1.0, "sdpa_flash": 2.0}, {"flex": 1.0, "sdpa_flash": 0.1}, {"sdpa_flash": 2.0}
        row = Measured("causal", "forward", shapes(1024), "float32", False, times, device, host)
        monkeypatch.setattr(dispatch, "table_for", lambda device: Table("card", "2.13.0", (row,)))
        for length, chosen in ((1024, "flex"), (4096, "sdpa_flash")):
            q, k, v = (torch.empty(1, 16, length, 64) for _ in range(3))
            assert am.explain(q, k, v, masks.Causal()).chosen == chosen

    def test_what_was_asked_for_is_said(self) -> None:
        assert "asked for" in am.explain(*inputs(900), masks.Causal(), backend="flex").note

    def test_attention_runs_what_explain_says(self) -> None:
        q, k, v = inputs(900, head_dim=64)
        out = am.attention(q, k, v, masks.Causal())
        assert torch.equal(out, am.attention(q, k, v, masks.Causal(), backend="sdpa_math"))
