"""Rules of files that all ranks write, fetch or make at the same time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.source.apart import Ways
from ddpdoctor.source.names import Files
from ddpdoctor.source.texts import fold
from ddpdoctor.source.traces import Step, Trace
from ddpdoctor.source.walking import find_keyword, is_true

SAVES = {"torch.save": ("f", 1), "safetensors.torch.save_file": ("filename", 1)}
"""Functions that write a checkpoint, and where the path stands."""
ARRAYS = {"numpy.save": ("file", 0), "numpy.savez": ("file", 0), "numpy.savez_compressed": ("file", 0)}
OPENS = frozenset({"open", "io.open", "builtins.open"})
FETCHES = {
    "urllib.request.urlretrieve": ("filename", 1),
    "wget.download": ("out", 1),
    "gdown.download": ("output", 1),
}
DATASETS = ("torchvision.datasets.", "torchaudio.datasets.", "torchtext.datasets.")
HARMLESS = ("/dev/null", ".lock")
BARRIERS = frozenset({"torch.distributed.barrier", "torch.distributed.monitored_barrier"})
MAKES = frozenset({"os.makedirs", "os.mkdir"})


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


def find_raced_writes(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what each rank writes to one path (``write-raced``).

    kind: checkpoint, other or text. path: how it is written. Nothing where a test may be about ranks, where the
    path may differ, or where the directory is changed.
    """
    if not trace.has_peers or any(step.name == "os.chdir" for step in trace.steps):
        return
    ways = Ways(files, trace)
    for step in trace.steps:
        written = find_written(step, files)
        if written is None or ways.may_differ(step) or not ways.is_alike(written[0], step):
            continue
        if any(each in ways.spell(written[0], step) for each in HARMLESS):
            continue
        yield ways.tell("write-raced", step, kind=written[1], path=ast.unparse(written[0]))


def find_raced_directories(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield directories that each rank makes or deletes, and fails where another was first (``directory-raced``).

    way: made or deleted. path: how it is written.
    """
    if not trace.has_peers or any(step.name == "os.chdir" for step in trace.steps):
        return
    ways = Ways(files, trace)
    for step in trace.steps:
        found = _find_directory(step)
        if found is None or any(each.kind == "try" for each in step.guards):
            continue
        if not ways.may_differ(step) and ways.is_alike(found[0], step):
            yield ways.tell("directory-raced", step, way=found[1], path=ast.unparse(found[0]))


def _find_directory(step: Step) -> tuple[ast.expr, str] | None:
    call = step.call
    if call is None:
        return None
    if step.name == "shutil.rmtree":
        path = find_keyword(call, "path", 0)
        ignored = is_true(find_keyword(call, "ignore_errors", 1)) or find_keyword(call, "onerror") is not None
        return (path, "deleted") if path is not None and not ignored else None
    exists = find_keyword(call, "exist_ok")
    fails = exists is None or (isinstance(exists, ast.Constant) and not exists.value)
    if step.name in MAKES and fails and len(call.args) < 3:
        path = find_keyword(call, "name" if step.name == "os.makedirs" else "path", 0)
        return (path, "made") if path is not None else None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "mkdir" and fails and len(call.args) < 3:
        return (call.func.value, "made") if step.name != "os.mkdir" else None
    return None


def find_raced_downloads(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what each rank fetches or unpacks to one place (``download-raced``).

    function: what does it. Nothing after a barrier that some ranks reach first, or after a call of the same function
    below a test on the rank: then one rank has fetched it already.
    """
    if not trace.has_peers or any(step.name == "os.chdir" for step in trace.steps):
        return
    ways = Ways(files, trace)
    before: set[str] = set()
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        apart = ways.may_differ(step)
        if step.name in BARRIERS and apart:
            return
        place = _find_fetched(step)
        if place is None:
            continue
        name = step.name or ast.unparse(call.func)
        if apart:
            before.add(name)
        elif name not in before and all(ways.is_alike(each, step) for each in place):
            yield ways.tell("download-raced", step, function=name.rpartition(".")[2])


def _find_fetched(step: Step) -> list[ast.expr] | None:
    """Return where a step fetches or unpacks to, as far as that is said; None for other steps."""
    call = step.call
    if call is None:
        return None
    path: ast.expr | None
    if step.name.startswith(DATASETS):
        if not is_true(find_keyword(call, "download")):
            return None
        path = find_keyword(call, "root", 0)
    elif step.name in FETCHES:
        path = find_keyword(call, *FETCHES[step.name])
        if path is None:
            return None  # to a temporary file
    elif isinstance(call.func, ast.Attribute) and call.func.attr == "extractall":
        path = find_keyword(call, "path", 0)
    else:
        return None
    return [path] if path is not None else []
