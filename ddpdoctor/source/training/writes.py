"""What programs write into files."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.traces import Step
from ddpdoctor.source.resolve.walking import find_keyword, is_spelled_out
from ddpdoctor.source.sameness.alike import follow_name

SAVES = {"torch.save": ("f", 1), "safetensors.torch.save_file": ("filename", 1)}
"""Functions that write a checkpoint, and where the path stands."""
OTHERS = {
    "numpy.save": ("file", 0),
    "numpy.savez": ("file", 0),
    "numpy.savez_compressed": ("file", 0),
    "torch.jit.save": ("f", 1),
    "torch.onnx.export": ("f", 2),
    "torchvision.utils.save_image": ("fp", 1),
    "torchaudio.save": ("uri", 0),
    "joblib.dump": ("filename", 1),
    "soundfile.write": ("file", 0),
    "cv2.imwrite": ("filename", 0),
    "imageio.imwrite": ("uri", 0),
    "matplotlib.pyplot.savefig": ("fname", 0),
    "scipy.io.savemat": ("file_name", 0),
    "scipy.io.wavfile.write": ("filename", 0),
    "ase.io.write": ("filename", 0),
}
"""Functions that write something else, and where the path stands."""
SCRIPTED = frozenset({"torch.jit.script", "torch.jit.trace", "torch.jit.freeze"})
"""Functions that give a module with a ``save`` of its own."""
OF_TEXTS = re.compile(r"token|process|config|extract|schedul", re.IGNORECASE)
"""Names of objects of transformers and diffusers that write small texts, the same on each rank."""
OPENS = frozenset({"open", "io.open", "builtins.open"})


def find_forwarded(step: Step) -> tuple[ast.Call, Step] | None:
    """Return the call whose arguments a step hands on as ``save(*args, **kwargs)``, and a step where these stand.

    None where it hands on nothing, or a function around it has taken arguments for itself.
    """
    call, found = step.call, None
    while call is not None and step.frames and _hands_on(call, step.frames[-1].callee.node):
        frame = step.frames[-1]
        call, step = frame.call, replace(step, scope=frame.scope, frames=step.frames[:-1])
        found = call, step
    return found


def _hands_on(call: ast.Call, function: ast.AST) -> bool:
    """Whether a call gives exactly what the function around it is given: ``*args``, ``**kwargs`` or both."""
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    own = function.args
    if own.posonlyargs or own.args or own.kwonlyargs or own.vararg is None:
        return False
    given = [each.value for each in call.args if isinstance(each, ast.Starred)]
    rest = [each.value for each in call.keywords if each.arg is None]
    names = [each.id for each in (*given, *rest) if isinstance(each, ast.Name)]
    expected = [own.vararg.arg] + ([own.kwarg.arg] if own.kwarg is not None else [])
    return names == expected and len(call.args) + len(call.keywords) == len(expected)


def find_written(step: Step, files: Files) -> tuple[ast.expr, str] | None:
    """Return the path that a step writes anew, and what: checkpoint, other or text; None for other steps."""
    call = step.call
    if call is None:
        return None
    for table, kind in ((SAVES, "checkpoint"), (OTHERS, "other")):
        if step.name in table:
            path = find_keyword(call, *table[step.name])
            return (path, kind) if path is not None else None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "save":
        path = find_keyword(call, "f", 0)
        made = path is not None and _is_scripted(call.func.value, step, files)
        return (path, "other") if path is not None and made else None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "save_pretrained" and not step.known:
        path = find_keyword(call, "save_directory", 0)
        others = [find_keyword(call, each) for each in ("is_main_process", "save_function")]
        small = OF_TEXTS.search(ast.unparse(call.func.value)) is not None
        plain = is_spelled_out(call) and others == [None, None] and not small
        return (path, "other") if path is not None and plain else None
    if step.name in OPENS:
        path, mode = (
            find_keyword(call, "file", 0),
            fold(find_keyword(call, "mode", 1), step.scope, files) or "",
        )
        if path is not None and mode.startswith("w") and "+" not in mode:
            return path, "other" if "b" in mode else "text"
    return None


def _is_scripted(node: ast.expr, step: Step, files: Files) -> bool:
    """Whether it is a module that TorchScript made, by whatever variable."""
    values = (
        [value for value, _, _ in follow_name(node, step.scope, step.frames)]
        if isinstance(node, ast.Name)
        else [node]
    )
    return bool(values) and all(
        isinstance(each, ast.Call) and files.dotted(each.func, step.scope) in SCRIPTED for each in values
    )
