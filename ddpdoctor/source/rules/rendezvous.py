"""Rules of where ranks meet: ports and files that stand in the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.source.calls import JOINS
from ddpdoctor.source.names import Files, Scope
from ddpdoctor.source.texts import find_settings, fold
from ddpdoctor.source.walking import find_keyword, name_calls, own_nodes

MOST = 65535
PRIVILEGED = 1024
ADDRESS = re.compile(r"tcp://(?:\[[^\]]*\]|[^:/]*):(\d+)")
PORTS = re.compile("MASTER_PORT|TCPStore|tcp:")
FILES = re.compile("file:|FileStore")
CLEANERS = re.compile(r"\b(?:remove|unlink|rmtree|tempfile|mkstemp|mkdtemp|uuid|TemporaryDirectory)\b")
"""What a script says that removes the file, or makes its name unique."""


def find_ports(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield ports of the rendezvous that stand in the script and cannot be used (``port-literal``).

    port: the number. Those below 1024 need privileges; 0 is passed over.
    """
    if not PORTS.search("\n".join(module.script.lines)):
        return
    for scope in module.walk():
        for node in own_nodes(scope.node):
            for value in _find_ports(node, scope, files):
                if (
                    value.isascii()
                    and value.isdigit()
                    and not PRIVILEGED <= int(value) <= MOST
                    and int(value)
                ):
                    yield SourceFact("port-literal", scope.place(node), details={"port": value})


def _find_ports(node: ast.AST, scope: Scope, files: Files) -> Iterator[str]:
    for name, value in find_settings(node, scope, files):
        if name == "MASTER_PORT":
            yield fold(value, scope, files) or ""
    if not isinstance(node, ast.Call):
        return
    called = files.dotted(node.func, scope)
    if called in JOINS:
        address = ADDRESS.fullmatch(fold(find_keyword(node, "init_method", 1), scope, files) or "")
        if address:
            yield address[1]
    elif called == "torch.distributed.TCPStore":
        yield fold(find_keyword(node, "port", 1), scope, files) or ""


def find_fixed_files(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield a ``file://`` rendezvous whose path is the same in each run (``rendezvous-file``).

    path: of the file. Nothing where the script removes files or makes unique names.
    """
    text = "\n".join(module.script.lines)
    if CLEANERS.search(text) or not FILES.search(text):
        return
    for scope in module.walk():
        for call, name in name_calls(scope, files):
            path = None
            if name in JOINS:
                path = fold(find_keyword(call, "init_method", 1), scope, files)
                path = path[7:] if path is not None and path.startswith("file://") else None
            elif name == "torch.distributed.FileStore":
                path = fold(find_keyword(call, "file_name", 0), scope, files)
            if path:
                yield SourceFact("rendezvous-file", scope.place(call), details={"path": path})
