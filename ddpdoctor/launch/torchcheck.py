"""Whether there is a torch that can be used; told without importing it. The one place of version gates."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys

from ddpdoctor.errors import DoctorError

OLDEST_TORCH = (2, 4)
"""The oldest release with everything that is used here (weights_only loading, torch.amp.GradScaler on
CPU)."""


def has_torch() -> bool:
    """Whether this Python would import some torch, whichever."""
    try:
        return importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def require_installed_torch() -> None:
    """Return only where this Python would import some torch, whichever.

    Raises:
        DoctorError: there is none.
    """
    if not has_torch():
        raise DoctorError(
            "torch is not installed for this Python",
            context=f"Python used: {sys.executable}",
            hint=(
                "python -m pip install torch; or install ddpdoctor in the environment that trains. lint, analyze and "
                "report work without torch"
            ),
        )


def require_torch() -> str | None:
    """Return the version of the torch that this Python would import, if it can be known.

    Raises:
        DoctorError: there is none, or it is older than `OLDEST_TORCH`.
    """
    require_installed_torch()
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        raise DoctorError(
            f"torch {version} is too old for ddpdoctor",
            context=f"it needs {'.'.join(map(str, OLDEST_TORCH))} or newer",
            hint="python -m pip install --upgrade torch, in a copy of the environment",
        )
    return version
