"""Direct links between the GPUs of a node, and a GPU that lacks those which all others have."""

from __future__ import annotations

import re
from collections.abc import Mapping

_DIRECT = re.compile(r"NV\d{1,3}|XGMI")
_REST = 3
"""GPUs that must all be linked to one another before one without such links is odd: two beside a third are a pair
with a bridge."""


def find_odd_gpus(links: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """Return each GPU without any direct link, where all others are linked with one another -> its links and theirs.

    On a machine whose GPUs are linked in pairs or in a mesh with gaps none is odd.

    Args:
        links: GPU -> peer -> connection (``NV18``, ``PIX``, ``SYS`` …), as ``nvidia-smi topo -m`` shows it.
    """
    direct = {
        gpu: {peer for peer, link in peers.items() if _DIRECT.fullmatch(link)} for gpu, peers in links.items()
    }
    rest = {gpu for gpu, peers in direct.items() if peers}
    odd = sorted(set(direct) - rest)
    if len(rest) < _REST or len(odd) >= len(rest):
        return {}
    if any({str(peer) for peer in rest - {gpu}} - direct[gpu] for gpu in rest):
        return {}
    usual = ", ".join(sorted({links[gpu][str(peer)] for gpu in rest for peer in rest - {gpu}}))
    return {
        gpu: f"{', '.join(sorted(set(links[gpu].values()))) or 'none'} to all others, which have {usual}"
        for gpu in odd
        if links[gpu]
    }
