"""A browser that is not there is said in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.browser.conftest import NAMED_BY, ROOT, launched, missing, wrong_path

needs_packages = pytest.mark.skipif(missing() is not None, reason=missing() or "")


@needs_packages
def test_a_wrong_path_fails_the_tests_with_a_sentence() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    one = "tests/browser/test_index.py::test_nothing_that_matches_is_said"
    environment = {**os.environ, NAMED_BY: "/no/such/chromium"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run([*command, one], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{NAMED_BY} is '/no/such/chromium', which is no program; name Chromium's, or unset it" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_right_path_and_none_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMED_BY, sys.executable)
    assert wrong_path() is None
    monkeypatch.delenv(NAMED_BY)
    assert wrong_path() is None


def test_another_program_is_said_not_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(**_: Any) -> None:
        raise RuntimeError("Target page has been closed\nand a log of many lines")

    monkeypatch.setenv(NAMED_BY, "/bin/true")
    playwright = SimpleNamespace(chromium=SimpleNamespace(launch=launch))
    with pytest.raises(pytest.fail.Exception) as failure:
        launched(playwright)
    assert str(failure.value) == "/bin/true does not start as Chromium: Target page has been closed"
