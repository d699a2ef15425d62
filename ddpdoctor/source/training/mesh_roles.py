"""Meshes of ranks as a program makes them, and along which of their dimensions an expression numbers the ranks."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ddpdoctor.evidence.sources import SourcePlace
from ddpdoctor.source.resolve.calls import MESHES
from ddpdoctor.source.resolve.kinds import Kinds
from ddpdoctor.source.resolve.names import UNKNOWN, Files, Scope
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.walking import find_keyword

WORLD = "*"
"""Stands for a number among all ranks of the job."""
DEEPEST = 6
ALL_RANKS = frozenset({"torch.distributed.get_rank", "torch.distributed.get_world_size"})
VARIABLES = frozenset({"RANK", "WORLD_SIZE"})
OF_DIMENSION = frozenset({"get_local_rank", "get_group", "size"})
"""Methods of a mesh that take the name or number of a dimension, unless the mesh has only one."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """A call of ``init_device_mesh`` that names its dimensions."""

    place: SourcePlace
    names: tuple[str, ...]
    sizes: tuple[int | None, ...]
    """Ranks along each dimension; None where the source does not spell them out."""

    def list_dimensions(self) -> list[str]:
        """Return the names of dimensions that may have more than one rank."""
        return [name for name, size in zip(self.names, self.sizes, strict=True) if size != 1]


def find_meshes(module: Scope, kinds: Kinds) -> list[Mesh]:
    """Return the meshes of the program of a module; none where one of them does not spell its names out."""
    found = []
    for call, scope, _ in kinds.programs.calls(module, MESHES):
        names = find_keyword(call, "mesh_dim_names", 2)
        shape = find_keyword(call, "mesh_shape", 1)
        if not isinstance(names, (ast.Tuple, ast.List)) or not isinstance(shape, (ast.Tuple, ast.List)):
            return []
        texts = [fold(each, scope, kinds.files) for each in names.elts]
        sizes = [fold(each, scope, kinds.files) for each in shape.elts]
        if None in texts or len(texts) != len(sizes):
            return []
        numbers = tuple(int(each) if each is not None and each.isdecimal() else None for each in sizes)
        found.append(Mesh(scope.place(call), tuple(each or "" for each in texts), numbers))
    return found


def find_dimensions(
    node: ast.expr | None, scope: Scope, files: Files, depth: int = 0
) -> frozenset[str] | None:
    """Return the dimensions along which an expression is a rank's number or their count; None where that is not seen.

    ``mesh["dp"].get_local_rank()`` is a number along ``dp``, ``dist.get_rank()`` one along `WORLD`.

    Args:
        node: the expression.
        scope: where it stands.
        files: all that are read together.
        depth: expressions that were followed so far.
    """
    if node is None or node is UNKNOWN or depth > DEEPEST:
        return None
    if isinstance(node, ast.Name):
        found = scope.lookup(node.id)
        if found is None or len(found[1]) != 1:
            return None
        return find_dimensions(found[1][0], found[0], files, depth + 1)
    if isinstance(node, ast.Subscript):
        if files.dotted(node.value, scope) == "os.environ":
            return frozenset({WORLD}) if fold(node.slice, scope, files) in VARIABLES else None
        names = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        texts = [
            each.value for each in names if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        return frozenset(texts) if texts and len(texts) == len(names) else None
    if not isinstance(node, ast.Call):
        return None
    name = files.dotted(node.func, scope)
    if name in ALL_RANKS:
        group = find_keyword(node, "group", 0)
        return find_dimensions(group, scope, files, depth + 1) if group is not None else frozenset({WORLD})
    if name == "int" and len(node.args) == 1:
        return find_dimensions(node.args[0], scope, files, depth + 1)
    if name in ("os.getenv", "os.environ.get") and node.args:
        return frozenset({WORLD}) if fold(node.args[0], scope, files) in VARIABLES else None
    if isinstance(node.func, ast.Attribute) and node.func.attr in OF_DIMENSION:
        named = find_keyword(node, "mesh_dim", 0)
        if named is None:
            return find_dimensions(node.func.value, scope, files, depth + 1)
        text = fold(named, scope, files)
        return frozenset({text}) if text is not None and not text.isdecimal() else None
    return None
