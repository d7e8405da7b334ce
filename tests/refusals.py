"""One clear error: whose it is, the rule broken, the value got, and what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

FORM = re.compile(r"[^:\n]+: [^\n]+, got [^\n]+; [^\n]+\.")


def assert_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    """The call raises exactly this kind of error, in the package's form and with no other behind it."""
    with pytest.raises(error, match=message) as caught:
        call()
    assert type(caught.value) is error
    assert FORM.fullmatch(str(caught.value)), f"not in the form of the package: {caught.value}"
    assert caught.value.__context__ is None, f"behind it: {caught.value.__context__!r}"
