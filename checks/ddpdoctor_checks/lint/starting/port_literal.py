"""NET009: a port that cannot be used stands in the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.calls import JOINS
from ddpdoctor.source.resolve.names import Files, Scope
from ddpdoctor.source.resolve.texts import find_settings, fold
from ddpdoctor.source.resolve.walking import find_keyword, own_nodes
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

MOST = 65535
PRIVILEGED = 1024
ADDRESS = re.compile(r"tcp://(?:\[[^\]]*\]|[^:/]*):(\d+)")
PORTS = re.compile("MASTER_PORT|TCPStore|tcp:")


@lint_rule("port-literal", reads="module")
def find_ports(module: Scope, files: Files) -> Iterator[SourceFact]:
    """Yield ports of the rendezvous that stand in the script and cannot be used (``port-literal``).

    port: the number. Those below 1024 need privileges; 0 is passed over.
    """
    if not PORTS.search(module.script.text):
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
            for each in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
                yield fold(each, scope, files) or ""
    if not isinstance(node, ast.Call):
        return
    called = files.dotted(node.func, scope)
    if called in ("os.environ.get", "os.getenv"):
        if fold(find_keyword(node, "key", 0), scope, files) == "MASTER_PORT":
            yield fold(find_keyword(node, "default", 1), scope, files) or ""
    elif called in JOINS:
        yield from _read_address(find_keyword(node, "init_method", 1), scope, files)
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        # An option whose default is such an address is that of the rendezvous.
        yield from _read_address(find_keyword(node, "default"), scope, files)
    elif called == "torch.distributed.TCPStore":
        yield fold(find_keyword(node, "port", 1), scope, files) or ""


def _read_address(value: ast.expr | None, scope: Scope, files: Files) -> Iterator[str]:
    address = ADDRESS.fullmatch(fold(value, scope, files) or "")
    if address:
        yield address[1]


@check("NET009", family="source", needs=NEEDS, id="lint.port", commands=LINT)
def tell_port_literal(evidence: Evidence) -> Iterable[Finding]:
    """A port that stands in the script is out of range or privileged."""
    for fact in facts_of(evidence, "port-literal"):
        port = int(fact.details["port"])
        wrong = "is above 65535" if port > 65535 else "is below 1024, which only root may open"
        yield tell_fact(
            fact,
            f"Port {port} at {name_line(fact.place)} {wrong}.",
            Fix(
                "use the launcher's port, or one between 1024 and 65535 below the ephemeral range",
                code='os.environ.setdefault("MASTER_PORT", "29500")',
            ),
            why=f"the port is {port} in each run",
            severity=None if port > 65535 else "warning",
        )
