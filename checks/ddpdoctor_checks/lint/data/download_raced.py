"""DAT008: all ranks fetch or unpack the same files."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.sources import SourceFact
from ddpdoctor.judge import Finding, Fix, check, lint_rule
from ddpdoctor.source.resolve.names import Files
from ddpdoctor.source.resolve.traces import Step, Trace
from ddpdoctor.source.resolve.walking import find_keyword, is_true
from ddpdoctor.source.sameness.apart import ways_of
from ddpdoctor_checks.lint.common import LINT, NEEDS, facts_of, name_line, tell_fact

FETCHES = {
    "urllib.request.urlretrieve": ("filename", 1),
    "wget.download": ("out", 1),
    "gdown.download": ("output", 1),
}
DATASETS = ("torchvision.datasets.", "torchaudio.datasets.", "torchtext.datasets.")
BARRIERS = frozenset({"torch.distributed.barrier", "torch.distributed.monitored_barrier"})


@lint_rule("download-raced", reads="program", classes=True)
def find_raced_downloads(trace: Trace, files: Files) -> Iterator[SourceFact]:
    """Yield what each rank fetches or unpacks to one place (``download-raced``).

    function: what does it. Nothing after a barrier that some ranks reach first, or after a call of the same function
    below a test on the rank: then one rank has fetched it already.
    """
    if not trace.has_peers or any(step.name == "os.chdir" for step in trace.steps):
        return
    ways = ways_of(files, trace)
    before: set[str] = set()
    for step in trace.steps:
        call = step.call
        if call is None:
            continue
        if step.name in BARRIERS and ways.may_differ(step):
            return
        place = _find_fetched(step)
        if place is None:
            continue
        name = step.name or ast.unparse(call.func)
        if ways.may_differ(step):
            before.add(name)
        elif name not in before and ways.is_of_all(step) and all(ways.is_alike(each, step) for each in place):
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


@check("DAT008", family="source", needs=NEEDS, id="lint.downloads", commands=LINT)
def tell_download_raced(evidence: Evidence) -> Iterable[Finding]:
    """Each rank fetches or unpacks the same files."""
    for fact in facts_of(evidence, "download-raced"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"All ranks download or extract with {function} at {name_line(fact.place)}: the first rank to "
            "finish reads what another rank is still writing.",
            Fix(
                "download on one rank of each node, then synchronize with a barrier",
                code=f'if int(os.environ["LOCAL_RANK"]) == 0:\n    {fact.place.text}\ndist.barrier()',
            ),
            why="no rank-dependent `if` guards it, and no rank has fetched it before",
            severity="warning",
        )
