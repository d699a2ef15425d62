"""Restarts that fail in init_process_group: ranks read addresses that the attempt before left in torchrun's store.

pytorch/pytorch#135712: since 2.5 the agent hosts one store for all attempts, whose keys are not told apart. A rank that
reads the address of its peer before that peer has written the new one connects to a port that is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor_checks.common.wording import choose_form, join_words
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis
from ddpdoctor_checks.job.blame.failures import Failure

SHARED = "TORCHELASTIC_USE_AGENT_STORE"
SWITCH = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
_FUNCTION = "init_process_group"
_WHY = (
    "torchrun keeps one store for all attempts, and ranks may read addresses that an earlier attempt left "
    "there"
)
_ADDRESSES = ("connectFullMesh failed", "NCCL error", "socketPollConnect", "Connection refused")
"""Texts in what ranks say that used an address of a peer which is no more."""


def explain_restarts(diagnosis: Diagnosis) -> list[EvidenceItem]:
    """Return that later attempts failed to connect, where they shared the first attempt's store."""
    attempts = sorted({each.view.attempt for each in _list_failures(diagnosis.all_failures)})
    if not attempts:
        return []
    which = f"{choose_form(len(attempts), 'attempt', 'attempts')} {join_words(map(str, attempts))}"
    return [EvidenceItem("restart", f"{which} could not connect in {_FUNCTION}: {_WHY}")]


def describe_store() -> EvidenceItem:
    """Return why ranks that were started again may wait in init_process_group for ever."""
    return EvidenceItem("restart", f"the ranks were restarted: {_WHY}")


def advise_restarts() -> Fix:
    """Return what gives each attempt a store of its own."""
    return Fix("give each attempt its own store (pytorch/pytorch#135712)", command=f"{SWITCH} torchrun …")


def shares_store(process: ProcessRecord) -> bool:
    """Whether a rank was started again and meets the others in the store of the attempts before."""
    return process.attempt > 0 and process.variables.get(SHARED) == "True"


def restarted_into_store(evidence: Evidence, pids: Iterable[int]) -> bool:
    """Whether all of some ranks share the store of an earlier attempt; False where that is not known."""
    known = {process.pid: process for process in evidence.processes}
    found = [known.get(pid) for pid in pids]
    return bool(found) and all(each is not None and shares_store(each) for each in found)


def _list_failures(failures: Sequence[Failure]) -> list[Failure]:
    return [
        each
        for each in failures
        if each.view.process is not None
        and shares_store(each.view.process)
        and any(frame.function == _FUNCTION for frame in each.frames)
        and any(text in f"{each.words}\n{each.message}" for text in _ADDRESSES)
    ]
