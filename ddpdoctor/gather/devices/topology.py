"""How the GPUs of a node are linked, as ``nvidia-smi topo -m`` prints it."""

from __future__ import annotations

import re


def parse_topology(text: str) -> dict[int, dict[str, str]]:
    """Return GPU index -> peer index -> connection (NV18, PIX, SYS …) from ``nvidia-smi topo -m``."""
    links: dict[int, dict[str, str]] = {}
    columns: list[str] = []
    for line in text.replace("\x1b[4m", "").replace("\x1b[0m", "").splitlines():
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        if not columns:
            if "GPU0" in cells:
                columns = [cell for cell in cells if re.fullmatch(r"GPU\d+|NIC\d+|mlx\S+", cell)]
            continue
        if not cells or not re.fullmatch(r"GPU\d+", cells[0]):
            continue
        row = [cell for cell in cells[1 : len(columns) + 1]]
        links[int(cells[0][3:])] = {
            column[3:]: cell
            for column, cell in zip(columns, row, strict=False)
            if column.startswith("GPU") and cell and cell != "X"
        }
    return links
