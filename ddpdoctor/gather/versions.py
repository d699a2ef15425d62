"""Versions of what a job is made of, read without importing any of it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ddpdoctor.gather.machine import ROOT, read_text

NCCL_WHEELS = ("nvidia-nccl-cu11", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""Distributions that carry libnccl for torch's wheels, by CUDA major version (pypi.org)."""

_ASSIGNMENT = re.compile(
    r"^(__version__|cuda|hip|xpu|git_version)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE
)
_DRIVER = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.[\d.]+)")


def gather_versions(root: Path = ROOT, model: str | None = None) -> dict[str, str]:
    """Return python, torch, cuda or hip, nccl (the wheel), driver and ddpdoctor, as far as they are known.

    Args:
        root: where proc is mounted.
        model: ``pkg.mod:factory`` or ``file.py:factory``; its file's hash is added as ``model``.
    """
    found: dict[str, str | None] = {"python": platform.python_version(), **_torch_versions()}
    found["nccl"] = next((v for name in NCCL_WHEELS if (v := distribution_version(name))), None)
    found["driver"] = driver_version(root)
    found["ddpdoctor"] = distribution_version("ddpdoctor")
    found["model"] = hash_model(model) if model else None
    return {name: value for name, value in found.items() if value}


def distribution_version(name: str) -> str | None:
    """Return the version of an installed distribution, None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError, TypeError):
        return None


def _torch_versions() -> dict[str, str]:
    """Read torch/version.py as text: importing it takes seconds, its metadata lacks the CUDA version."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return {}
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(next(iter(spec.submodule_search_locations)))
    found = dict(_ASSIGNMENT.findall(read_text(folder / "version.py")))
    names = {"__version__": "torch", "cuda": "cuda", "hip": "hip", "xpu": "xpu"}
    versions = {ours: found[theirs] for theirs, ours in names.items() if theirs in found}
    if "torch" not in versions and (version := distribution_version("torch")):
        versions["torch"] = version
    return versions


def driver_version(root: Path = ROOT) -> str | None:
    """Return the version of the loaded NVIDIA or AMD kernel driver."""
    match = _DRIVER.search(read_text(root / "proc/driver/nvidia/version"))
    return match[1] if match else read_text(root / "sys/module/amdgpu/version") or None


def hash_model(model: str) -> str | None:
    """Return a short hash of the file that holds the factory; None where it is not found.

    Args:
        model: ``pkg.mod:factory`` or ``path/to/file.py:factory``. A module is looked for along ``sys.path`` and
            in the working directory, without importing parent packages: their code is the user's and may do
            anything.
    """
    for path in _places_of(model.rpartition(":")[0]):
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        except OSError:
            continue
    return None


def _places_of(module: str) -> Iterator[Path]:
    if module.endswith(".py"):
        yield Path(module)
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return
    for folder in [*sys.path, os.getcwd()]:
        stem = Path(folder or ".").joinpath(*parts)
        yield from (stem / "__init__.py", stem.with_name(f"{stem.name}.py"))
