"""The verdict: the check registry, running checks over evidence, and ordering what they found."""

from ddpdoctor.judge.catalogue import CodePage
from ddpdoctor.judge.finding import QUESTION, EvidenceItem, Finding, Fix, Where
from ddpdoctor.judge.once import once
from ddpdoctor.judge.registry import CannotLook, Check, NotApplicable, Registry, check, diagnosis
from ddpdoctor.judge.rules import LintRule, lint_rule
from ddpdoctor.judge.runner import CheckRow, run_checks
from ddpdoctor.judge.verdict import Verdict, order_findings, reach_verdict

__all__ = [
    "QUESTION",
    "CannotLook",
    "Check",
    "CheckRow",
    "CodePage",
    "EvidenceItem",
    "Finding",
    "Fix",
    "LintRule",
    "NotApplicable",
    "Registry",
    "Verdict",
    "Where",
    "check",
    "diagnosis",
    "lint_rule",
    "once",
    "order_findings",
    "reach_verdict",
    "run_checks",
]
