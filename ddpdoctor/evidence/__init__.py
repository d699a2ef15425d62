"""Evidence: what was seen, per rank or per node, before any check has run.

Plain frozen dataclasses; they import nothing above them. `Evidence` is the whole, its field names are the
*evidence kinds* that a check names in ``needs``.
"""

from ddpdoctor.evidence.bundle import Absent, Evidence, merge_evidence
from ddpdoctor.evidence.codec import decode, encode
from ddpdoctor.evidence.facts import (
    Cpus,
    Device,
    Interface,
    Launch,
    Leftover,
    Library,
    Limits,
    NodeFacts,
    RankFacts,
    RendezvousFile,
    SharedMemory,
)
from ddpdoctor.evidence.network import HostMatch, Link, PortProbe, Rendezvous, Resolution
from ddpdoctor.evidence.ranks import RankSet
from ddpdoctor.evidence.stages import (
    DEFAULT_STAGES,
    STAGES,
    STRATEGIES,
    Defect,
    Frame,
    RankError,
    RankExit,
    SmokeResult,
    StackClass,
    StageRecord,
)
from ddpdoctor.evidence.world import (
    BackendResult,
    BandwidthRow,
    Baseline,
    CollectiveCase,
    Experiment,
    InitResult,
    ModelResult,
    PairRow,
    RankMessage,
    UnusedParameter,
    UserError,
)

__all__ = [
    "DEFAULT_STAGES",
    "STAGES",
    "STRATEGIES",
    "Absent",
    "BackendResult",
    "BandwidthRow",
    "Baseline",
    "CollectiveCase",
    "Cpus",
    "Defect",
    "Device",
    "Evidence",
    "Experiment",
    "Frame",
    "HostMatch",
    "InitResult",
    "Interface",
    "Launch",
    "Leftover",
    "Library",
    "Limits",
    "Link",
    "ModelResult",
    "NodeFacts",
    "PairRow",
    "PortProbe",
    "RankError",
    "RankExit",
    "RankFacts",
    "RankMessage",
    "RankSet",
    "Rendezvous",
    "RendezvousFile",
    "Resolution",
    "SharedMemory",
    "SmokeResult",
    "StackClass",
    "StageRecord",
    "UnusedParameter",
    "UserError",
    "decode",
    "encode",
    "merge_evidence",
]
