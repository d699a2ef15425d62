"""CKP001 to CKP005 and DAT008 as they stand in the source."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact
from ddpdoctor_checks.lint.rewriting import find_call, read_line, rewrite, set_keyword

NEEDS = ("sources",)
_GUARD = (
    'if dist.get_rank() == 0:\n    torch.save(state, path + ".tmp")\n    os.replace(path + ".tmp", path)\n'
    "dist.barrier()"
)


@check("CKP001", family="source", needs=NEEDS, id="lint.checkpoints", commands=LINT)
def find_write_raced(evidence: Evidence) -> Iterable[Finding]:
    """Each rank writes one path."""
    for fact in facts_of(evidence, "write-raced"):
        kind, path = fact.details["kind"], fact.details["path"]
        severity = {"checkpoint": None, "other": "warning"}.get(kind, "info")
        yield tell_fact(
            fact,
            f"All ranks write {path} at {name_line(fact.place)}: the file can be torn, or a mix of their data.",
            Fix("write on rank 0 only, under another name first", code=_guard(fact.place.text, path)),
            why="no test on the rank stands above it, and the path is the same on all ranks",
            severity=severity,
            role="advice" if severity == "info" else "cause",
        )


def _guard(text: str, path: str) -> str:
    """Return a save below a test on the rank, with the path of the place where it is short."""
    call = find_call(read_line(text), "save")
    if (
        call is None
        or len(call.args) < 2
        or not isinstance(call.args[1], (ast.Name, ast.Attribute, ast.Constant))
    ):
        return _GUARD
    fixed = call.args[1].value if isinstance(call.args[1], ast.Constant) else None
    part = repr(f"{fixed}.tmp") if isinstance(fixed, str) else f"{path} + '.tmp'"
    call.args[1] = ast.parse(part, mode="eval").body
    return (
        f"if dist.get_rank() == 0:\n    {ast.unparse(call)}\n    os.replace({part}, {path})\ndist.barrier()"
    )


@check("CKP002", family="source", needs=NEEDS, id="lint.checkpoint_order", commands=LINT)
def find_read_early(evidence: Evidence) -> Iterable[Finding]:
    """Ranks read what rank 0 writes, and nothing makes them wait."""
    for fact in facts_of(evidence, "read-early"):
        path = fact.details["path"]
        yield tell_fact(
            fact,
            f"{path} is read at {name_line(fact.place)} by ranks that do not wait until rank 0 has "
            f"written it at {name_line(fact.related[0].place)}.",
            Fix("let all ranks wait between writing and reading", code=f"dist.barrier()\n{fact.place.text}"),
            why="no collective stands between the two lines",
        )


@check("CKP003", family="source", needs=NEEDS, id="lint.map_location", commands=LINT)
def find_load_unmapped(evidence: Evidence) -> Iterable[Finding]:
    """A checkpoint is loaded by all ranks without ``map_location``."""
    for fact in facts_of(evidence, "load-unmapped"):
        yield tell_fact(
            fact,
            f"torch.load at {name_line(fact.place)} has no map_location: each rank loads onto the device from which "
            "the file was saved, mostly GPU 0.",
            Fix(
                "load onto the CPU, or the rank's own device",
                code=rewrite(
                    fact.place.text,
                    ("load",),
                    lambda call: set_keyword(call, "map_location", "'cpu'"),
                    'torch.load(path, map_location="cpu")',
                ),
            ),
            why="the program uses GPUs, and what is loaded goes to load_state_dict",
            severity="warning",
        )


@check("CKP004", family="source", needs=NEEDS, id="lint.checkpoint_prefix", commands=LINT)
def find_prefix(evidence: Evidence) -> Iterable[Finding]:
    """The state of a wrapped model is loaded into one that is not wrapped, or the reverse."""
    for fact in facts_of(evidence, "prefix-differs"):
        line, saved = name_line(fact.place), name_line(fact.related[0].place)
        if fact.details["saved"] == "wrapped":
            message = f"{line} loads into a model that is not wrapped what {saved} has saved of the wrapper: each key "
            message += "begins with module."
        else:
            message = f"{line} loads into the wrapper what {saved} has saved of the model in it: no key begins with "
            message += "module."
        yield tell_fact(
            fact,
            message,
            Fix(
                "save and load the model inside of the wrapper",
                code="torch.save(model.module.state_dict(), path)\nmodel.module.load_state_dict(torch.load(path))",
            ),
            why="both lines name one path, and what is saved and loaded was followed to where it was made",
        )


@check("CKP005", family="source", needs=NEEDS, id="lint.directories", commands=LINT)
def find_directory_raced(evidence: Evidence) -> Iterable[Finding]:
    """Each rank makes or deletes one directory."""
    for fact in facts_of(evidence, "directory-raced"):
        path = fact.details["path"]
        if fact.details["way"] == "made":
            wrong = f"All ranks make {path} at {name_line(fact.place)}: who comes second fails with FileExistsError."
            fix = Fix("let it exist already", code=f"os.makedirs({path}, exist_ok=True)")
        else:
            wrong = (
                f"All ranks delete {path} at {name_line(fact.place)}: some fail as it vanishes under them."
            )
            fix = Fix(
                "delete it on rank 0 and let the others wait",
                code=f"if dist.get_rank() == 0:\n    shutil.rmtree({path}, ignore_errors=True)\ndist.barrier()",
            )
        yield tell_fact(
            fact,
            wrong,
            fix,
            why="no test on the rank stands above it, and the path is the same on all ranks",
            severity="warning",
        )


@check("DAT008", family="source", needs=NEEDS, id="lint.downloads", commands=LINT)
def find_download_raced(evidence: Evidence) -> Iterable[Finding]:
    """Each rank fetches or unpacks the same files."""
    for fact in facts_of(evidence, "download-raced"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"All ranks fetch or unpack with {function} at {name_line(fact.place)}: who is done early reads "
            "what another writes once more.",
            Fix(
                "fetch on one rank of each node, then let the others go on",
                code=f'if int(os.environ["LOCAL_RANK"]) == 0:\n    {fact.place.text}\ndist.barrier()',
            ),
            why="no test on the rank stands above it, and no rank has fetched it before",
            severity="warning",
        )
