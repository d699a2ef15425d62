"""The built-in checks, one module per family of codes; registered like anyone else's."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from ddpdoctor.judge import Registry


def register(registry: Registry) -> None:
    """Add all built-in checks, in the order in which reports show their families."""
    import importlib
    import pkgutil

    for family in FAMILIES:
        package = importlib.import_module(f"ddpdoctor_checks.{family}")
        registry.add_module(package)
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.") if family == "lint" else ()
        for name in sorted((each.name for each in found), key=lambda name: name.rpartition(".")[2]):
            registry.add_module(importlib.import_module(name))


FAMILIES = (
    "network",
    "environment",
    "backends",
    "collectives",
    "ddp",
    "bandwidth",
    "job.hangs",
    "job.recorder",
    "training",
    "job.ends",
    "job.silent",
    "lint",
)
"""Modules of this package that hold checks, in report order."""
