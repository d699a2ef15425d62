"""How the replicas of one model diverged: what is judged in `divergence`, and said in `divergence_words`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import StateLook, StepLook, TensorLook, WrapperLook
from ddpdoctor.evidence.training.loads import LateLoad
from ddpdoctor_checks.training.replicas.models import Replica
from ddpdoctor_checks.training.seeding import Seeded


@dataclass(frozen=True, slots=True)
class Divergence:
    """How the replicas of one model diverged."""

    code: str
    replica: Replica
    first: StepLook | None
    """The first look at which parameters differ; None where there was none after the gradients did."""
    gradients: StepLook | None = None
    """The first look at which gradients differ; None where they never do."""
    tensors: tuple[TensorLook, ...] = ()
    """Those that the cause is about."""
    ranks: RankSet = field(default_factory=RankSet)
    way: WrapperLook | None = None
    """What was done with the wrapper."""
    at_start: bool = False
    """Whether they differ before the first step."""
    slight: bool = False
    """Whether they differ in their last bits only."""
    state: StateLook | None = None
    """Part of the optimizer's state that differs while parameters and gradients are equal."""
    state_step: int = 0
    """The step before which the optimizer state differs; 0: it does not."""
    confidence: str = "high"
    between: bool = False
    """Whether it happened in a step between two looks: counts tell it."""
    advice: bool = False
    """Whether it may well be meant."""
    overdue: Frame | None = None
    """A test behind which the program averages parameters, where that was never due."""
    often: bool = False
    """Collectives carry as much as the parameters in each step."""
    vain: bool = False
    """Whether the program averages as much as the parameters several times, and no two ranks agree after it."""
    unsure: bool = False
    """Whether nothing tells whether the ranks train one model or each its own."""
    load: LateLoad | None = None
    """A load into the wrapped model or the optimizer that not all ranks made, or not all with the same values."""
    seeded: Seeded | None = None
    """Where ranks that drew different parameters got different seeds, and what these were."""
    shared: bool = False
    """Tensors are those that ranks hold alike beside parts of their own of one model."""
    other_groups: tuple[RankSet, ...] = ()
    """Further groups of replicas of the same model that diverged in the same way."""

    @property
    def unreduced_shards(self) -> bool:
        """Whether ranks began with the same shards of a model and step them with gradients of their own."""
        setup = self.replica.setup
        apart = self.gradients is not None and not self.at_start and not self.slight
        return self.code == "NUM001" and apart and bool(setup.peers) and self.replica.wrapper is None
