"""What a run says of where it ran: settings, not places; versions, or that there is none."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import torch

from benchmarks import environment as module
from benchmarks.environment import code_version, driver_version, environment, installed_version


def test_settings_are_recorded_and_places_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_HOME",
        "CUDA_PATH",
        "TRITON_CACHE_DIR",
        "TRITON_PTXAS_PATH",
        "CUDA_ROOT",
    ):
        monkeypatch.setenv(name, "/a/place")
    monkeypatch.setenv("TORCH_LOGS", "recompiles")
    monkeypatch.setenv("SECRET", "1")
    recorded = environment()["variables"]
    assert recorded["TORCH_LOGS"] == "recompiles"
    assert "/a/place" not in recorded.values() and "SECRET" not in recorded


def test_versions() -> None:
    told = environment()
    assert (told["torch"], told["cuda"]) == (torch.__version__, torch.version.cuda)
    assert installed_version("click") and installed_version("no-such-package") is None


@pytest.mark.parametrize(("printed", "version"), [("580.159.04\n", "580.159.04"), ("1.0\n1.0\n", "1.0"), ("", None)])
def test_the_driver(printed: str, version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, stdout=printed)

    monkeypatch.setattr(module.subprocess, "run", run)
    assert driver_version() == version


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.CalledProcessError(9, "nvidia-smi")])
def test_without_a_card_there_is_no_driver(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **options: Any) -> Any:
        raise error

    monkeypatch.setattr(module.subprocess, "run", run)
    assert driver_version() is None


def test_a_commit_can_be_named_where_there_is_no_git() -> None:
    assert code_version("abc123") == {"git_sha": "abc123", "dirty": None}
