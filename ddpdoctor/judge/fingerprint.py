"""What makes a finding the same one in another run, and after the file was edited elsewhere."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

from ddpdoctor.judge.finding import Finding

LENGTH = 16
"""Hexadecimal digits that are kept: two of a million findings meet with a probability of 3e-8."""


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def fingerprint(finding: Finding) -> str:
    """Return a short text that is the same as long as the code and what it was found in are.

    It hangs on the code, the file, the function and the text of the line and of the tests above it, with their white
    space made one: not on line numbers, and not on our words. Findings alike in all of that have one. What stands
    nowhere in source is told by our words without their numbers: ports, shares and times differ from run to run.
    """
    parts = [finding.code]
    tests = [each for each in finding.where[1:] if each.role == "condition"]
    for place in [*finding.where[:1], *tests]:
        parts += [place.file, place.function or "", " ".join((place.source or "").split())]
    if not finding.where:
        parts.append(_NUMBER.sub("0", finding.message))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]


def number_fingerprints(findings: Iterable[Finding]) -> list[str]:
    """Return one text for each finding that no other has: from the second of several alike on, with its number."""
    seen: Counter[str] = Counter()
    numbered = []
    for each in findings:
        mark = fingerprint(each)
        seen[mark] += 1
        numbered.append(mark if seen[mark] == 1 else f"{mark}-{seen[mark]}")
    return numbered
