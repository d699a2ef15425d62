"""Whether exactly one communication library, torch's own, is in play."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence, Library, NodeFacts, RankSet, encode
from ddpdoctor.facts.ownership import is_installed
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, Fix, NotApplicable, check
from ddpdoctor_checks.common.wording import join_words

LIBRARIES = re.compile(r"(?:lib|nvidia-)?(?:nccl|rccl)(?:-cu\d+)?", re.IGNORECASE)
"""Names of the libraries and of the wheels that carry them; plug-ins such as libnccl-net are others."""


@check("BKD006", family="backends", needs=("nodes",), id="bkd.libraries.single", required=False)
def find_library_conflict(evidence: Evidence) -> Iterable[Finding]:
    """More than one NCCL (RCCL), or one that torch was not built with, is loaded or installed."""
    seen = False
    groups: dict[str, list[NodeFacts]] = {}
    for node in evidence.nodes:
        found = [each for each in node.libraries if LIBRARIES.fullmatch(each.name)]
        seen = seen or bool(found)
        problem = _name_conflict(node, found)
        if problem:
            groups.setdefault(problem, []).append(node)
    note = next((node.libraries_note for node in evidence.nodes if node.libraries_note), None)
    if not seen and note is not None:
        raise CannotLook(note)
    if not seen:
        raise NotApplicable("no NCCL or RCCL library is installed")
    for problem, nodes in groups.items():
        yield _conflict(evidence, problem, nodes)


def _name_conflict(node: NodeFacts, found: list[Library]) -> str | None:
    loaded = {os.path.normpath(each.path): each for each in found if each.source == "loaded"}
    wheels = {(each.name, each.version): each for each in found if each.source == "wheel"}
    if len(loaded) > 1:
        return f"two libraries are loaded into one process: {_list(loaded.values())}"
    if len(wheels) > 1:
        return f"two distributions install the same library: {_list(wheels.values())}"
    if loaded and wheels:
        (library,) = loaded.values()
        (wheel,) = wheels.values()
        if library.version and wheel.version and not _same_version(library.version, wheel.version):
            return f"{_list([library])} is loaded, but torch's own is {_list([wheel])}"
        if not is_installed(library.path):
            return f"{_list([library])} is loaded instead of torch's own {_list([wheel])}"
    if wheels and not loaded:
        directories = [part for part in node.variables.get("LD_LIBRARY_PATH", "").split(":") if part]
        for each in found:
            ahead = os.path.dirname(os.path.normpath(each.path)) in [os.path.normpath(d) for d in directories]
            if each.source == "search-path" and ahead and not is_installed(each.path):
                return f"LD_LIBRARY_PATH puts {_list([each])} before torch's own {_list(wheels.values())}"
    return None


def _same_version(first: str, second: str) -> bool:
    """Compare the three numbers of NCCL versions; wheels may add a fourth."""
    return first.split("+")[0].split(".")[:3] == second.split("+")[0].split(".")[:3]


def _list(libraries: Iterable[Library]) -> str:
    return " and ".join(
        f"{each.path} ({each.name} {each.version or 'of unknown version'})" for each in libraries
    )


def _conflict(evidence: Evidence, problem: str, nodes: list[NodeFacts]) -> Finding:
    hosts = tuple(node.host for node in nodes)
    numbers = {node.node for node in nodes}
    libraries = [each for each in nodes[0].libraries if LIBRARIES.fullmatch(each.name)]
    wheels = [each for each in libraries if each.source == "wheel"]
    torch = nodes[0].versions.get("torch", "<version>").split("+")[0]
    fixes = [
        Fix(
            ("remove other NCCL libraries from LD_LIBRARY_PATH and LD_PRELOAD"),
            command="unset LD_LIBRARY_PATH LD_PRELOAD",
        )
    ]
    if len(wheels) > 1:
        fixes = [
            Fix(
                "remove all of them, then reinstall torch with the one that it needs",
                command="pip freeze | grep -io '^nvidia-nccl-cu[0-9]*' | xargs pip uninstall -y; "
                f"pip install --force-reinstall torch=={torch}",
            )
        ]
    return Finding(
        message=f"On {join_words(hosts)} {problem}.",
        ranks=RankSet(facts.rank for facts in evidence.ranks if facts.node in numbers),
        nodes=hosts,
        evidence=tuple(
            EvidenceItem("library", f"{each.source}: {each.path} ({each.name} {each.version or '?'})")
            for each in libraries
        ),
        fix=tuple(fixes),
        details=encode({"libraries": libraries}),
        severity=None if evidence.launch.backend == "nccl" else "info",
        confidence="high" if problem.startswith("two") else "medium",
    )
