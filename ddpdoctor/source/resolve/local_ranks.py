"""Ranks that count the processes of one node, and not those of the whole job."""

from __future__ import annotations

import ast
import re

from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.walking import find_argument, find_keyword

VARIABLES = frozenset({"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"})
"""Variables of launchers that hold the rank in the node."""
ONE_NODE = re.compile(r"localhost|127\.0\.0\.1|device_count")
"""What a script says that knows only one node, or how many GPUs there are."""
STANDALONE = re.compile(r"standalone")
"""What a script says that is started on one node, as far as its own words go."""
DEEPEST = 4
"""Variables and functions over which a value is followed."""


def is_local_rank(node: ast.expr, scope: Scope, files: Files, depth: int = 0) -> bool:
    """Whether a value is the rank in the node: by its variable, or by its name where nothing else shows what it is.

    Args:
        node: the value.
        scope: where it stands.
        files: all that are read together.
        depth: values that were followed so far.
    """
    if depth > DEEPEST:
        return False
    if isinstance(node, ast.Call):
        name = files.dotted(node.func, scope)
        if name in ("os.environ.get", "os.getenv"):
            return bool(node.args) and fold(node.args[0], scope, files) in VARIABLES
        inner = node.args[0] if name == "int" and len(node.args) == 1 else None
        return name == "torch.distributed.get_node_local_rank" or (
            inner is not None and is_local_rank(inner, scope, files, depth + 1)
        )
    if isinstance(node, ast.Subscript):
        return files.dotted(node.value, scope) == "os.environ" and fold(node.slice, scope, files) in VARIABLES
    if isinstance(node, ast.Attribute):
        return node.attr == "local_rank"
    if not isinstance(node, ast.Name):
        return False
    found = scope.lookup(node.id)
    if found is None:
        return False
    home, values = found
    if node.id in home.parameters and len(values) == 1:
        given = [(find_argument(call, home, node.id), where) for call, where in files.objects.callers(home)]
        return bool(given) and all(
            each is not None and is_local_rank(each, where, files, depth + 1) for each, where in given
        )
    return len(values) == 1 and is_local_rank(values[0], home, files, depth + 1)


def joins_by_local_rank(call: ast.Call) -> bool:
    """Whether the rank in the node is given as that in the job: there is one node."""
    rank = find_keyword(call, "rank")
    return rank is not None and "local" in ast.unparse(rank).lower()
