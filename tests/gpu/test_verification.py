"""Every entry on a card: picture, rule, dense form, blocks, and what the backends that need no compiler compute."""

from __future__ import annotations

import pytest
import torch

import attn_mods as am
from attn_mods import backends
from attn_mods.backends.packages import installed

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # A thread of torch's autograd that meets cuBLAS first says that it makes itself a context.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

UNCOMPILED = [backend.name for backend in backends.ALL if backend.name != "flex"]


@pytest.mark.parametrize("name", am.names())
def test_entry(name: str) -> None:
    report = am.verify(name, device="cuda", backends=UNCOMPILED)
    assert report.ok, str(report)
    assert "eager = float64" in {row.check for row in report.rows if row.outcome == "ok"}


@pytest.mark.parametrize("name", ["causal", "document_causal"])
@pytest.mark.filterwarnings("ignore")  # the package warns of its own affairs when it is imported and when it compiles
def test_flash_kernels_in_a_half_type(name: str) -> None:
    if not installed("flash_attn.cute"):
        pytest.skip("flash_attn.cute is not installed")
    report = am.verify(name, device="cuda", backends=["flex_flash", "flash4"], dtype=torch.bfloat16)
    assert report.ok, str(report)
    assert {"flex_flash = float64", "flash4 = float64"} <= {row.check for row in report.rows if row.outcome == "ok"}
