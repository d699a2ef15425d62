"""BKD014: a version that is known to fail in just the way that a job failed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import EvidenceItem, Finding, Fix, check
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.job.ends.clauses import require_job

VERSION = "nccl-version"
"""Entry of the table of texts in which NCCL, or torch on its behalf, names the release in use."""

Release = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect of some releases of NCCL, and what a job that met it left behind."""

    first: Release
    last: Release
    codes: frozenset[str]
    """The cause, as it is told without knowing the defect."""
    said: re.Pattern[str]
    """A line of the job has to say this too: a version alone proves nothing."""
    what: str
    fix: str
    source: str


DEFECTS = (
    Defect((2, 0, 0), (2, 9, 99), frozenset({"BKD002"}),
           re.compile(r"Could not find real path of /sys/class/pci_bus"),
           "NCCL before 2.10 does not support WSL 2, whose sysfs has no PCI paths", "use NCCL 2.10 or newer",
           "https://github.com/NVIDIA/nccl/issues/442"),
    Defect((2, 0, 0), (2, 14, 99), frozenset({"BKD002"}), re.compile(r"Failed to find reverse path"),
           "NCCL before 2.15.1 does not know the topology of H100 servers", "use NCCL 2.15.1 or newer",
           "https://github.com/mila-iqia/milabench/issues/183"),
    Defect((2, 20, 5), (2, 20, 5), frozenset({"BKD002", "COL003"}),
           re.compile(r"Message truncated : received \d{1,12} bytes instead of \d{1,12}"),
           "NCCL 2.20.5 fails in the bootstrap of groups that span nodes unevenly", "use 2.18.5 or one after 2.20.5",
           "https://github.com/NVIDIA/nccl/issues/1273"),
    Defect((2, 24, 0), (2, 24, 99), frozenset({"BKD002", "ENV008"}),
           re.compile(r"Error while attaching to shared memory segment"),
           "NCCL 2.24 hands wrong segment names to its peers", "use NCCL 2.21.5 or one after 2.24",
           "https://github.com/NVIDIA/nccl/issues/1589"),
    Defect((2, 26, 0), (2, 26, 2), frozenset({"ERR007"}), re.compile(r"RTX PRO \d{4} Blackwell"),
           "NCCL 2.26.2 makes illegal accesses from 512 KiB on between these GPUs", "use NCCL 2.31.2 or newer",
           "https://github.com/NVIDIA/nccl/issues/2418"),
    Defect((2, 27, 7), (2, 27, 7), frozenset({"ERR004"}), re.compile(r"libnccl|ncclRas|rasMsg"),
           "the RAS thread of NCCL 2.27.7 can crash", "set NCCL_RAS_ENABLE=0, or use a newer NCCL",
           "https://github.com/NVIDIA/nccl/issues/1996"),
)  # fmt: skip
"""Defects that were reported in public with the releases that have them."""


@check("BKD014", family="crash", needs=(), id="crash.known_defects", required=False, commands=JOB)
def find_known_defects(evidence: Evidence) -> Iterable[Finding]:
    """A job failed as a release of NCCL in use is known to fail."""
    cause = require_job(evidence).cause
    versions = {
        release: text
        for text in evidence.texts
        if text.entry == VERSION and (release := read_release(text.groups.get("version", ""))) is not None
    }
    if cause is None or not versions:
        return
    lines = [
        *(text.text for text in evidence.texts),
        *(each.text for job in evidence.job for each in job.notable),
    ]
    for defect in DEFECTS:
        had = next((each for each in versions if defect.first <= each <= defect.last), None)
        said = next((line for line in lines if defect.said.search(line)), None)
        if cause.code not in defect.codes or had is None or said is None:
            continue
        version = ".".join(map(str, had))
        yield Finding(
            message=f"NCCL {version} is in use, and a known defect fits the failure: {defect.what}.",
            role="advice",
            confidence="medium",
            evidence=(EvidenceItem("text", versions[had].text[:300]), EvidenceItem("text", said[:300])),
            fix=(Fix(defect.fix),),
            details={"library": "nccl", "version": version, "source": defect.source},
        )


def read_release(text: str) -> Release | None:
    """Return a release of NCCL as numbers; None where it is none."""
    found = re.match(r"(\d{1,2})\.(\d{1,3})\.(\d{1,3})", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
