"""What a run has in its settings when it is started without options: assigned by the program, or a parser's default."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.once import once
from ddpdoctor.source.resolve.texts import fold
from ddpdoctor.source.resolve.walking import find_calls, find_keyword, name_last, own_nodes
from ddpdoctor.source.sameness.alike import SETTINGS

HOLDERS = frozenset({"HParams", "Namespace", "SimpleNamespace", "EasyDict", "AttrDict"})
"""Classes whose objects hold the settings that their calls name, in whichever package."""


@once
def _known_of(files: Files) -> dict[tuple[str, Scope], str | None]:
    """Return the table of what settings of a name are in a program, to be filled."""
    return {}


def find_setting(node: ast.expr | None, scope: Scope, files: Files) -> str | None:
    """Return the text that an expression has in a run without options; None where it may have another one.

    ``args.backend`` is what the program assigns to it, where that is one text everywhere; otherwise the default of the
    only option of argparse, or field of a dataclass, of that name.

    Args:
        node: the expression.
        scope: where it stands.
        files: all that are read together.
    """
    fixed = fold(node, scope, files)
    if fixed is not None or not isinstance(node, ast.Attribute):
        return fixed
    if name_last(node.value) not in SETTINGS:
        return None
    known = _known_of(files)
    key = node.attr, scope.module
    if key not in known:
        members = files.find_related(scope.module)
        assigned = list(_find_assigned(node.attr, members, files))
        values = assigned or list(_find_defaults(node.attr, members, files))
        known[key] = values[0] if values and len(set(values)) == 1 else None
    return known[key]


def _find_assigned(name: str, modules: frozenset[Scope], files: Files) -> Iterator[str | None]:
    for module in modules:
        for scope in module.walk():
            for node in own_nodes(scope.node):
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if any(_is_setting(each, name) for each in targets):
                        plain = node.value if isinstance(node, ast.Assign) else None
                        yield fold(plain, scope, files)
                elif isinstance(node, ast.Call) and (given := _find_put(node, name)) is not None:
                    yield fold(given, scope, files)


def _find_put(call: ast.Call, name: str) -> ast.expr | None:
    """Return what a call puts into a setting: ``setattr(args, "device", …)``, ``vars(args).update(device=…)``."""
    if name_last(call.func) == "setattr" and len(call.args) == 3:
        key = call.args[1]
        return call.args[2] if isinstance(key, ast.Constant) and key.value == name else None
    return find_keyword(call, name) if name_last(call.func) == "update" else None


def _is_setting(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and name_last(node.value) in SETTINGS


def _find_defaults(name: str, modules: frozenset[Scope], files: Files) -> Iterator[str | None]:
    for module in modules:
        for scope in module.walk():
            if isinstance(scope.node, ast.ClassDef) and scope.node.decorator_list and name in scope.bound:
                yield from (fold(each, scope, files) for each in scope.bound[name])
            for call in find_calls(scope):
                if (
                    isinstance(call.func, ast.Attribute)
                    and call.func.attr == "add_argument"
                    and name_option(call) == name
                ):
                    yield fold(find_keyword(call, "default"), scope, files)
                elif name_last(call.func) in HOLDERS and (given := find_keyword(call, name)) is not None:
                    yield fold(given, scope, files)


def name_option(call: ast.Call) -> str:
    """Return the attribute under which argparse keeps an option: by ``dest``, or by its first long name."""
    dest = find_keyword(call, "dest")
    if isinstance(dest, ast.Constant):
        return str(dest.value)
    names = [
        each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)
    ]
    long = [each for each in names if each.startswith("--")] or names
    return long[0].lstrip("-").replace("-", "_") if long else ""
