"""How the processes ended whose calls were recorded: an end of its own goes before what others waited in."""

from __future__ import annotations

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis
from ddpdoctor_checks.job.blame.failures import Level
from ddpdoctor_checks.job.blame.judging import diagnose
from ddpdoctor_checks.job.calls.first_difference import WAITED


def diagnose_ends(evidence: Evidence) -> Diagnosis | None:
    """Return what is known of how the processes ended; None where nothing is."""
    kinds = (evidence.processes, evidence.exceptions, evidence.crashes, evidence.texts)
    return diagnose(evidence) if any(kinds) else None


def failed_itself(diagnosis: Diagnosis | None) -> bool:
    """Whether a rank failed on its own account: then what others waited in only followed."""
    cause = diagnosis.cause if diagnosis is not None else None
    return cause is not None and cause.level <= Level.STATUS and cause.code not in WAITED


def ended_well(diagnosis: Diagnosis, ranks: RankSet) -> RankSet:
    """Return those of some ranks that had ended well."""
    return RankSet(
        view.rank
        for view in diagnosis.views.ranks
        if view.rank is not None
        and view.rank in ranks
        and view.process is not None
        and view.process.clean_end
        and view.process.exit_code in (0, None)
        and view.process.signal is None
    )
