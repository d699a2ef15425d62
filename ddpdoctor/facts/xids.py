"""What NVIDIA's Xid numbers mean for whoever asks whether the GPU or the program caused them, if either did.

Source: the actions and trigger conditions of NVIDIA's Xid catalogue for Ampere and newer GPUs
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and the list of application errors that NVIDIA's
Kubernetes device plug-in ignores (NVIDIA/k8s-device-plugin, internal/rm/health.go) for 109, where the catalogue asks
for a reset of the GPU as well. Numbers of video engines, of display and of confidential computing are not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

XidKind = Literal["device", "restart", "program", "follows", "recorded", "harmless"]
"""``device``: the GPU or its link needs a reset, a reboot or a repair. ``restart``: memory or link of the GPU ended the
program, which can start again there. ``program``: mostly the program's own error. ``follows``: printed after another
Xid. ``recorded``: the GPU corrected or noted it and works on. ``harmless``: says nothing of the GPU's health."""

XIDS: Mapping[XidKind, frozenset[int]] = {
    "device": frozenset({
        46, 48, 61, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, *range(144, 151), 151, 155, 156, 158, 167, 169,
        171, 172,
    }),
    "restart": frozenset({32, 80, 94}),
    "program": frozenset({13, 31, 43, 68, 69, 109, 137}),
    "follows": frozenset({45, 154}),
    "recorded": frozenset({63, 92, 121, 157}),
    "harmless": frozenset({93, 106, 107}),
}  # fmt: skip
"""No number has two kinds."""


def find_kind(number: int) -> XidKind | None:
    """Return what a number means; None where the table does not list it."""
    return next((kind for kind, numbers in XIDS.items() if number in numbers), None)


def write_pattern(kinds: str) -> str:
    """Return the alternatives of a regular expression for the numbers of some kinds.

    Args:
        kinds: names of kinds, separated by blanks.

    Raises:
        ValueError: there is no such kind.
    """
    numbers: set[int] = set()
    for name in kinds.split():
        found = next((numbers for kind, numbers in XIDS.items() if kind == name), None)
        if found is None:
            raise ValueError(f"{name!r} is no kind of Xid: {', '.join(XIDS)}")
        numbers |= found
    return "|".join(map(str, sorted(numbers)))
