"""What programs write into files."""

from __future__ import annotations

import ast

from ddpdoctor.source.names import Files
from ddpdoctor.source.texts import fold
from ddpdoctor.source.traces import Step
from ddpdoctor.source.walking import find_keyword

SAVES = {"torch.save": ("f", 1), "safetensors.torch.save_file": ("filename", 1)}
"""Functions that write a checkpoint, and where the path stands."""
ARRAYS = {"numpy.save": ("file", 0), "numpy.savez": ("file", 0), "numpy.savez_compressed": ("file", 0)}
OPENS = frozenset({"open", "io.open", "builtins.open"})


def find_written(step: Step, files: Files) -> tuple[ast.expr, str] | None:
    """Return the path that a step writes anew, and what: checkpoint, other or text; None for other steps."""
    call = step.call
    if call is None:
        return None
    for table, kind in ((SAVES, "checkpoint"), (ARRAYS, "other")):
        if step.name in table:
            path = find_keyword(call, *table[step.name])
            return (path, kind) if path is not None else None
    if step.name in OPENS:
        path, mode = (
            find_keyword(call, "file", 0),
            fold(find_keyword(call, "mode", 1), step.scope, files) or "",
        )
        if path is not None and mode.startswith("w") and "+" not in mode:
            return path, "other" if "b" in mode else "text"
    return None
