"""Every text that a user reads keeps to the words of the field: the old ones of the glossary do not come back.

The texts are the string literals of the product (not docstrings, regular expressions or identifiers), the HTML
templates, the catalogue, the documents of the repository, and the help of every command.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpdoctor.cli.arguments.parsing import build_parser
from ddpdoctor.cli.commands import COMMANDS, load_command, render_help

ROOT = Path(__file__).parents[2]

GLOSSARY: dict[str, str] = {
    r"could (not )?look\b|did not look|nobody looked": "ran / inconclusive",
    r"\b(ranks?|it|they|threads?|job|\}) (stands?|stood)\b|\bstands? still|\bstood still|standstill": "is blocked in, hangs",
    r"\bstands (in|at|on|behind|before|above|below|there|beside)\b": "is in, precedes",
    r"\b(a|no|one|two|each|another|the) looks?\b|\blooked at\b|\blooks/": "snapshot, sampled",
    r"\btells?\b|\btold\b": "reports, shows",
    r"\b(report|log|recorder|dump|torch|gloo|NCCL|kernel|page|finding|message|text|name|word) says\b": "reports, notes",
    r"tests? (on|of|about) (the|a|its) rank|(below|under|out of|outside of) (a|the|any) tests?\b": "rank-dependent `if`",
    r"\bmak(e|es|ing) (a|the|its|each|other|no|their|equal) (calls?|collectives?)|never makes?\b(?! progress)": "issue, reach",
    r"(do|does) not fit\b|\bfits? each other": "mismatched",
    r"\b(goes|go|going|went|gets?|got) on\b(?! (with )?ranks?\b)": "makes progress, continues",
    r"\bat fault\b|\bculprits?\b": "root-cause rank",
    r"\bvictims?\b": "affected ranks",
    r"\bparted\b|\bpart with\b|replicas part\b": "diverged, separated",
    r"\bshared? out\b|\bshares out\b|(part|share) of the data\b": "shard",
    r"\bin silence\b": "silent failure",
    r"\b(the|at|after|before) (the )?wrap\b": "DDP wrapping, when the model is wrapped",
    r"around the wrapper|around DistributedDataParallel": "bypasses DDP",
    r"\b(forwards|backwards)\b": "forward passes, backward passes",
    r"not hidden\b|\bhides? behind|hidden behind|that nothing hides": "exposed communication, overlaps",
    r"comes? late|comes? last|arriv(es|ing) last|keeps? being late": "straggler, lags",
    r"where (the )?ranks meet|to where they meet": "synchronization point",
    r"\busual step": "typical (median) step",
    r"\bin the median\b(?! of)": "(median)",
    r"\bproved\b|on proof\b|\bno proof\b(?!:)": "deadlock proven",
    r"limit of (the|its|a) (group|call|collective)\b": "process-group timeout",
    r"\b(a|the|tiny|whole|this|made) world\b(?! size)": "job, test job, process group",
    r"\bprocessors?\b": "CPU",
    r"\btexts\b": "messages, strings",
    r"\bmade-up\b": "synthetic",
    r"\badvice\b": "suggestion, info",
    r"\bthe own\b|\bof own\b": "its own",
    r"\balike\b": "identically, in the same way",
    r"\b(nobody|somebody|anybody)\b": "no rank, some rank",
    r"\bin vain\b": "until it timed out",
    r"cannot be read twice": "is not replayable",
    r"\bhead node\b": "rendezvous host",
    r"\bsigns? of life\b": "heartbeats",
    r"\bsent again\b|not confirmed\b": "retransmitted, unacknowledged",
    r"\bremarks?\b|\b(is|as|be) (only )?a (note|hint)\b|\bnotes? (on|where|as)\b": "info",
    r"built into this torch": "this PyTorch build lacks",
    r"\b(shapes or|other) types\b|\bx types\b": "dtypes",
    r"\bleft out\b|\bleaves? out\b|\bpassed over\b|\bpass(es)? over\b": "skipped, omitted, not analyzed",
    r"\bjudg(e|es|ed|ing|ement|ment)\b": "diagnose, evaluate",
    r"\bexamin(e|es|ed|ing|ation)\b": "diagnose, inspect, test",
    r"\b\w*(initialis|synchronis|serialis|normalis|optimis|recognis|utilis|quantis)\w*": "American spelling: -ize",
    r"\bcolours?\b|\bdata sets?\b|\btime-outs?\b|\bbehaviour|\bneighbour|\bstart-up\b": "American spelling",
    r"\bover (the )?(ranks|nodes)\b": "across ranks",
    r"\bloader workers?\b": "DataLoader workers",
}
"""Old word -> what to write instead."""

QUOTED = re.compile(r"`[^`]*`|``[^`]*``|\"[^\"]*\"|“[^”]*”|https?://\S+|\]\([^)]*\)")
"""Quotations and code in prose: other programs say what they say."""
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
NAMES = re.compile(
    r"\b(backend-initialisation-failed|batch-norm-unsynchronised|process-group-uninitialised)\b|^\| [a-z0-9-]+ \|",
    re.MULTILINE,
)
"""Names of codes are public and stay; so do those of the cases in the tables of docs/accuracy.md."""
IDENTIFIER = re.compile(r"[A-Za-z0-9_./:*%-]*")
OLD = re.compile("|".join(f"(?:{pattern})" for pattern in GLOSSARY), re.IGNORECASE)
REGULAR = re.compile(r"\(\?|\\[sdwbSW]|\[\^|\.\*")

FOREIGN = (
    "ddpdoctor/cli/incident.py",  # writes logs of other programs
    "ddpdoctor/watch/launch/guardian.py",  # a shell script
    "ddpdoctor/source/",  # names in the programs of others
    "ddpdoctor/evidence/text",  # messages of other programs
    "ddpdoctor/facts/ownership.py",
)
USES: dict[str, tuple[str, ...]] = {
    "ddpdoctor/gather/scrub.py": ("admin ubuntu nobody daemon",),
    "CONTRIBUTING.md": ("then judge, then", "ddpdoctor/judge", "ddpdoctor.judge"),
    "docs/architecture.md": ("then judge, then", "ddpdoctor/judge"),
}
"""Allowed uses: file -> phrases in which an old word means something else."""


def _literals(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each literal that is prose; a value in an f-string reads as ``{}``."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for first in body if isinstance(body, list) else ():
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                skipped.add(id(first.value))  # docstrings
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("re.", "_re.")):
            skipped.update(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            skipped.update(id(each) for each in node.values)
            parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(text := node.value, str):
            prose = not IDENTIFIER.fullmatch(text) and not REGULAR.search(text)
            yield from [(node.lineno, text)] * prose


def _prose(markdown: str) -> str:
    return NAMES.sub("", QUOTED.sub("", FENCED.sub("", markdown)))


def _find(text: str, file: str) -> list[str]:
    for allowed in USES.get(file, ()):
        text = text.replace(allowed, "")
    return [match[0] for match in OLD.finditer(text)]


SOURCES = sorted(
    file
    for folder in ("ddpdoctor", "checks", "plugins")
    for file in (ROOT / folder).rglob("*.py")
    if not str(file.relative_to(ROOT)).startswith(FOREIGN)
    and "/tests/" not in str(file)
    and "/demos/" not in str(file)
)
PAGES = sorted(
    file
    for pattern in (
        "checks/*/catalogue/*.md",
        "plugins/*/src/*/catalogue/*.md",
        "docs/*.md",
        "docs/[!a]*/**/*.md",  # all but the decisions
        "tests/newcomer/*.md",
        "*.md",
    )
    for file in ROOT.glob(pattern)
)


def test_messages_keep_to_the_glossary() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {word!r} in {text!r}"
        for file in SOURCES
        for line, text in _literals(file)
        for word in _find(text, str(file.relative_to(ROOT)))
    ]
    assert wrong == []


def test_templates_keep_to_the_glossary() -> None:
    wrong = []
    for file in sorted((ROOT / "ddpdoctor" / "report" / "html" / "templates").glob("*.jinja")):
        shown = re.sub(r"\{[{%#].*?[}%#]\}", " ", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        shown = re.sub(r"<[^>]*>", " | ", shown)
        wrong += [f"{file.name}: {word!r}" for word in _find(shown, file.name)]
    assert wrong == []


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_pages_keep_to_the_glossary(file: Path) -> None:
    assert _find(_prose(file.read_text(encoding="utf-8")), str(file.relative_to(ROOT))) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_help_keeps_to_the_glossary(command: str) -> None:
    parser = build_parser(command, load_command(command))
    assert _find(parser.format_help(), "help") == []
    assert _find(render_help(), "help") == []


def test_words_that_are_looked_for_are_found() -> None:
    for text in (
        "29 of 30 checks could look",
        "move the call out of the test",
        "nobody came",
        "Initialise it",
    ):
        assert _find(text.lower(), ""), text
