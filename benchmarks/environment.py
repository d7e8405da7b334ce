"""What a measurement ran on, recorded once per run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

RECORDED_VARIABLES = ("TORCH", "TRITON", "CUDA", "OMP", "MKL", "OPENBLAS")
LOCATIONS = ("_DIR", "_HOME", "_PATH", "_ROOT")


def environment(device: str = "cuda") -> dict[str, Any]:
    """Processor, card, versions and the settings that change speed.

    Args:
        device: What is measured; "cpu" is no card, though there may be one.
    """
    return {
        "card": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else None,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "driver": driver_version(),
        "triton": installed_version("triton"),
        "attn_gym": installed_version("attn_gym"),
        "flash_attn_4": installed_version("flash-attn-4"),
        "fa3_fwd": installed_version("fa3-fwd"),
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,  # type: ignore[no-untyped-call]
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "variables": _variables(),
    }


def _variables() -> dict[str, str]:
    """Settings of the libraries; where they keep their files changes no measurement."""
    named = sorted(os.environ.items())
    return {n: value for n, value in named if n.startswith(RECORDED_VARIABLES) and not n.endswith(LOCATIONS)}


def driver_version() -> str | None:
    """Version of the card's driver; None where there is no card."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(told.split()), None)


def installed_version(package: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
    """The processor's model name."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def code_version(commit: str | None = None) -> dict[str, Any]:
    """Commit of the working tree and whether it has changes; None for both outside of git.

    Args:
        commit: The commit of a copy that came without git; whether the copy was changed is then not known.
    """
    if commit is not None:
        return {"git_sha": commit, "dirty": None}
    try:
        head = _git("rev-parse", "HEAD")
        dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return {"git_sha": None, "dirty": None}
    return {"git_sha": head, "dirty": dirty}


def _git(*arguments: str) -> str:
    folder = Path(__file__).parent
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
