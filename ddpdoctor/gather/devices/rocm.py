"""What rocm-smi prints of each device."""

from __future__ import annotations

import json
from typing import Any

from ddpdoctor.evidence.facts import Device

OPTIONS = (
    "--showproductname",
    "--showuniqueid",
    "--showmeminfo",
    "vram",
    "--showdriverversion",
    "--showbus",
)


def parse_rocm(text: str) -> tuple[Device, ...]:
    """Return the devices of ``rocm-smi … --json``; keys differ between releases, others are passed over."""
    try:
        data: Any = json.loads(text[text.index("{") :])
    except ValueError:
        return ()
    if not isinstance(data, dict):
        return ()
    driver = _pick(data.get("system"), "driver version")
    devices = []
    for key, card in data.items():
        if not (key.startswith("card") and key[4:].isdigit()):
            continue
        total, used = _pick(card, "vram total memory (b)"), _pick(card, "vram total used memory (b)")
        devices.append(
            Device(
                index=int(key[4:]),
                uuid=_pick(card, "unique id"),
                name=_pick(card, "card series") or _pick(card, "card model"),
                kind="rocm",
                memory_total=int(total) if total and total.isdigit() else None,
                memory_used=int(used) if used and used.isdigit() else None,
                driver=driver,
                pci=_pick(card, "pci bus"),
            )
        )
    return tuple(sorted(devices, key=lambda each: each.index))


def _pick(card: Any, wanted: str) -> str | None:
    """Return the value under a key, whatever its case."""
    if not isinstance(card, dict):
        return None
    value = next((value for key, value in card.items() if str(key).lower() == wanted), None)
    return None if value is None or str(value) in ("N/A", "None") else str(value)
