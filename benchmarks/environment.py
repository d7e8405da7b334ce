"""What a measurement ran on, recorded once per run."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

RECORDED_VARIABLES = ("TORCH", "TRITON", "CUDA", "OMP", "MKL", "OPENBLAS")


def environment() -> dict[str, Any]:
    """Processor, card, versions and the settings that change speed."""
    return {
        "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "variables": _variables(),
    }


def _variables() -> dict[str, str]:
    """Settings of the libraries; where they keep their files changes no measurement."""
    named = sorted(os.environ.items())
    return {name: value for name, value in named if name.startswith(RECORDED_VARIABLES) and not name.endswith("_DIR")}


def processor_name() -> str:
    """The processor's model name."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def code_version() -> dict[str, Any]:
    """Commit of the working tree and whether it has changes; None for both outside of git."""
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
