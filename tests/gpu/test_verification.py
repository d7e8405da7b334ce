"""Every entry on a card: picture, rule, dense form, blocks, and what the backends that need no compiler compute."""

from __future__ import annotations

import pytest
import torch

import attn_mods as am
from attn_mods import backends

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
