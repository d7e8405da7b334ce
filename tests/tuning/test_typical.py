"""What others of a kind take, where a recipe itself was not measured."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import attn_mods as am
from attn_mods import dispatch, masks
from attn_mods.backends import Shapes
from attn_mods.tuning import Measured, Table
from attn_mods.tuning.typical import FEWEST, look_up, typical


def shapes(length: int) -> Shapes:
    return Shapes(1, 4, 4, length, length, 64, 64)


def row(name: str, length: int, **ms: float) -> Measured:
    return Measured(name, "forward", shapes(length), "float32", False, ms)


# Multiples of flex: 2, 3, 1/2 and 1 for sdpa_math, 4 for eager; flex itself 1, 2, 4, 8 and 3 ms.
FIVE = (
    row("a", 1024, flex=1.0, sdpa_math=2.0, eager=4.0),
    row("b", 1024, flex=2.0, sdpa_math=6.0),
    row("c", 1024, flex=4.0, sdpa_math=2.0),
    row("d", 1024, flex=8.0, sdpa_math=8.0),
    row("e", 1024, flex=3.0),
)


def found(*rows: Measured, length: int = 1024, dtype: torch.dtype = torch.float32, **asked: bool) -> Measured | None:
    has_score, training = asked.get("has_score", False), asked.get("training", False)
    return typical(Table("card", "2.13.0", rows), has_score, shapes(length), dtype, training)


def test_median_of_multiples() -> None:
    by_hand = {"flex": 3.0, "sdpa_math": 3.0 * 1.5, "eager": 3.0 * 4}
    measured = found(*FIVE)
    assert measured is not None
    assert measured.ms == measured.device_ms == by_hand
    assert measured.host_ms == {}
    assert str(measured) == "the median of 5 masks, 1,024 x 1,024, B=1 Hq=4 D=64, float32"


def test_device_and_host_have_medians_of_their_own() -> None:
    timed = (
        dataclasses.replace(each, device_ms={"flex": 1.0, "sdpa_math": 0.25}, host_ms={"flex": 0.5, "eager": 2.0})
        for each in FIVE
    )
    measured = found(*timed)
    assert measured is not None
    assert measured.device_ms == {"flex": 1.0, "sdpa_math": 0.25, "eager": 4.0}
    assert measured.host_ms == {"flex": 0.5, "eager": 2.0}
    assert measured.fastest_first(shapes(4096)) == ["sdpa_math", "flex", "eager"]


@pytest.mark.parametrize(
    "rows",
    [
        FIVE[1:],
        (*FIVE[1:], dataclasses.replace(FIVE[0], recipe="causal")),
        (*FIVE[1:], dataclasses.replace(FIVE[0], has_score=True)),
        (*FIVE[1:], dataclasses.replace(FIVE[0], what="forward_backward")),
        (*FIVE[1:], dataclasses.replace(FIVE[0], dtype="bfloat16")),
        (*FIVE[1:], dataclasses.replace(FIVE[0], shapes=shapes(2048))),
        (*FIVE[1:], row("f", 1024, sdpa_math=1.0)),
    ],
    ids=["four", "causal", "a score", "another pass", "another dtype", "another size", "without flex"],
)
def test_too_few_alike(rows: tuple[Measured, ...]) -> None:
    assert FEWEST == 5
    assert found(*rows) is None


def test_scores_by_scores_and_bfloat16_for_float16() -> None:
    rows = tuple(dataclasses.replace(each, has_score=True, dtype="bfloat16") for each in FIVE)
    measured = found(*rows, has_score=True, dtype=torch.float16)
    assert measured is not None and measured.recipe == "5 scores"
    assert found(*rows, has_score=True, dtype=torch.bfloat16) is not None
    assert found(*rows, has_score=True) is None
    assert found(*rows, dtype=torch.float16) is None


@pytest.mark.parametrize(("length", "nearest"), [(1, 1024), (2000, 1024), (4096, 8192), (1 << 20, 8192)])
def test_nearest_sizes_of_which_there_are_enough(length: int, nearest: int) -> None:
    long = (dataclasses.replace(each, shapes=shapes(8192)) for each in FIVE)
    measured = found(*FIVE, *long, row("a", 4096, flex=1.0), length=length)
    assert measured is not None and measured.shapes == shapes(nearest)


def test_its_own_measurement_comes_first() -> None:
    table = Table("card", "2.13.0", (*FIVE, row("mine", 65_536, eager=1.0)))
    assert look_up(table, "mine", False, shapes(1024), torch.float32, False) is table.rows[-1]
    other = look_up(table, "another", False, shapes(1024), torch.float32, False)
    assert other is not None and other.recipe == "5 masks"


def test_auto_and_explain_go_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    faster = tuple(dataclasses.replace(each, ms=each.ms | {"eager": each.ms["flex"] / 2}) for each in FIVE)
    q, k, v = (torch.empty(1, 4, 1024, 64) for _ in range(3))
    for rows, chosen in ((FIVE, "flex"), (faster, "eager")):
        monkeypatch.setattr(dispatch, "table_for", lambda device, rows=rows: Table("card", "2.13.0", rows))
        told = am.explain(q, k, v, masks.SlidingWindow(5))
        assert told.chosen == chosen
        assert told.note == (
            "auto: sliding_window was not measured on this card; the fastest by the median of 5 masks, "
            "1,024 x 1,024, B=1 Hq=4 D=64, float32"
        )
        shorter = am.explain(q[:, :, :512], k[:, :, :512], v[:, :, :512], masks.SlidingWindow(5))
        assert shorter.note == f"{told.note}, scaled to these sizes; the times are unscaled"
        assert {each.backend for each in told.rows if each.measured != "not measured"} == {"flex", "sdpa_math", "eager"}
