"""Which errors one rank may meet alone: all ranks run the same code, so most errors come to all of them alike."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.walking import name_last, own_nodes

OF_ONE_RANK = frozenset({"OutOfMemoryError", "MemoryError", "FloatingPointError", "ZeroDivisionError"})
"""Errors of memory and numbers."""
OF_ANYTHING = frozenset({"BaseException", "Exception", "RuntimeError", "OSError", "IOError"})
"""Errors that say nothing of what raised them: what is tried tells whether one rank may be alone with them."""
OF_SAMPLES = frozenset({"ValueError", "IndexError", "KeyError", "LookupError", "TypeError", "AssertionError",
                        "ArithmeticError", "OverflowError", "UnicodeError", "UnicodeDecodeError"})  # fmt: skip
"""Errors of what a batch contains: where a step of the training is tried, each rank has a batch of its own."""
_OWN_WORK = frozenset("""load open read readline readlines read_text read_bytes fromfile memmap loadtxt genfromtxt
    imread imdecode read_csv read_parquet read_json read_image read_video decode_jpeg urlopen urlretrieve download
    download_url recv connect listdir scandir stat getsize iterdir rename remove unlink rmtree rmdir mkdir makedirs
    touch copy2 copyfile copytree extractall next save dump backward cuda to pin_memory
    synchronize""".split())  # fmt: skip
"""Functions and methods that work on a rank's own data, files, memory or device, by the last part of their names."""
_OWN_PACKAGES = ("requests.", "urllib.request.", "torch.linalg.", "h5py.", "lmdb.", "PIL.", "cv2.", "pandas.read_",
                 "os.replace", "shutil.copy", "shutil.move")  # fmt: skip
DEEPEST = 3
"""Functions of the files that are followed into one another."""

Ask = Callable[[ast.expr, Scope], object]
"""Says of an expression whether ranks differ in it; true or an object for yes."""


class Handlers:
    """Says of handlers whether one rank may get there alone.

    Args:
        files: all that are read together.
        differs: whether ranks differ in a test.
        is_rank: whether an expression is a rank's number.
    """

    def __init__(self, files: Files, differs: Ask, is_rank: Ask) -> None:
        self._files = files
        self._differs = differs
        self._is_rank = is_rank
        self._alone: dict[tuple[Scope, int], bool] = {}

    def is_of_one_rank(
        self, handler: ast.ExceptHandler, tried: Sequence[ast.AST], scope: Scope, *, trains: bool = False
    ) -> bool:
        """Whether an error may come to one rank alone: not a missing module, a setting, or what this torch lacks.

        Args:
            handler: it catches nothing but what one rank may meet, by the names of its errors.
            tried: the statements above it.
            scope: in which they stand.
            trains: whether they train on a batch.
        """
        names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        kinds = {"BaseException" if each is None else name_last(each) for each in names}
        if not kinds <= OF_ONE_RANK | OF_ANYTHING | (OF_SAMPLES if trains else frozenset()):
            return False
        return bool(kinds & OF_ONE_RANK) or self._works_alone(tried, scope, 0)

    def _works_alone(self, body: Sequence[ast.AST], scope: Scope, depth: int) -> bool:
        """Whether statements work on what is a rank's own, or raise an error on a test in which ranks differ."""
        nodes = [each for statement in body for each in (statement, *own_nodes(statement))]
        return any(self._is_own(node, scope, depth) for node in nodes)

    def _is_own(self, node: ast.AST, scope: Scope, depth: int) -> bool:
        if isinstance(node, ast.If):
            raises = any(isinstance(each, ast.Raise) for each in (*node.body, *node.orelse))
            return raises and bool(self._differs(node.test, scope))
        if isinstance(node, ast.Assert):
            return bool(self._differs(node.test, scope))
        if isinstance(node, ast.Subscript):
            return bool(self._is_rank(node.slice, scope))
        if not isinstance(node, ast.Call):
            return False
        name = self._files.dotted(node.func, scope) or ""
        if name_last(node.func) in _OWN_WORK or name.startswith(_OWN_PACKAGES):
            return True
        function = self._files.function(node.func, scope)
        if function is None or depth >= DEEPEST:
            return False
        key = function, depth
        if key not in self._alone:
            self._alone[key] = self._works_alone(function.node.body, function, depth + 1)
        return self._alone[key]
