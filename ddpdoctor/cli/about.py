"""``ddpdoctor --version -v``: what a bug report needs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys

from ddpdoctor import __version__

LIBRARIES = ("psutil", "rich", "py-spy", "numpy")


def describe() -> str:
    """Return versions and places, one a line."""
    rows = [
        ("ddpdoctor", f"{__version__} in {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}"),
        ("Python", f"{platform.python_version()} ({platform.python_implementation()}) at {sys.executable}"),
        ("platform", f"{platform.platform()}, {os.cpu_count()} logical CPUs"),
        *_describe_torch(),
        *((name, _find_version(name)) for name in LIBRARIES),
        ("py-spy program", shutil.which("py-spy", path=_search_path()) or "not found"),
        ("plugins", ", ".join(_list_plugins()) or "none"),
    ]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows)


def _find_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _describe_torch() -> list[tuple[str, str]]:
    """Import torch, which may fail in any way: a bug report is about that then."""
    if importlib.util.find_spec("torch") is None:
        return [("torch", "not installed")]
    try:
        import torch
        import torch.distributed as dist
    except Exception as problem:
        return [
            ("torch", f"{_find_version('torch')}, cannot be imported: {type(problem).__name__}: {problem}")
        ]
    rows = [("torch", f"{torch.__version__} in {os.path.dirname(torch.__file__)}")]
    if not dist.is_available():
        return [*rows, ("backends", "none: torch.distributed is not in this build")]
    names = {
        "gloo": dist.is_gloo_available,
        "nccl": dist.is_nccl_available,
        "mpi": dist.is_mpi_available,
        "ucc": dist.is_ucc_available,
    }
    rows.append(("backends", ", ".join(name for name, ask in names.items() if ask()) or "none"))
    return [*rows, *_describe_devices(torch)]


def _describe_devices(torch: object) -> list[tuple[str, str]]:
    version, cuda = getattr(torch, "version", None), getattr(torch, "cuda", None)
    built = getattr(version, "cuda", None)
    rocm = getattr(version, "hip", None)
    if not (built or rocm) or cuda is None:
        return [("devices", "a CPU build")]
    rows = [("CUDA", built or f"ROCm {rocm}")]
    try:
        rows.append(("NCCL", ".".join(map(str, cuda.nccl.version()))))
        count = cuda.device_count()
        kinds = sorted({cuda.get_device_name(index) for index in range(count)})
        rows.append(("devices", f"{count}: {', '.join(kinds)}" if count else "0"))
    except Exception as problem:  # a driver that is too old, a device that is lost
        rows.append(("devices", f"cannot be asked: {type(problem).__name__}: {problem}"))
    return rows


def _search_path() -> str:
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])


def _list_plugins() -> list[str]:
    """Return the distributions that bring checks, gatherers or renderers, with their versions."""
    from ddpdoctor.plugins import GROUPS

    found = {
        entry.dist.name: entry.dist.version
        for group in GROUPS
        for entry in importlib.metadata.entry_points(group=group)
        if entry.dist is not None and entry.dist.name != "ddpdoctor"
    }
    return [f"{name} {version}" for name, version in sorted(found.items())]
