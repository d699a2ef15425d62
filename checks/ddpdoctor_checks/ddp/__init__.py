"""Checks of DDP, NUM and CKP: a training step whose outcome is known, the user's own model, and other strategies."""

from ddpdoctor_checks.ddp.experiments import (
    find_checkpoint_not_restored,
    find_experiment_raised,
    find_gradient_wrong,
    find_replicas_diverged,
)
from ddpdoctor_checks.ddp.factory import find_factory_failed
from ddpdoctor_checks.ddp.strategies import find_strategy_raised, find_strategy_wrong
from ddpdoctor_checks.ddp.unused import (
    find_parameters_unused,
    find_search_unneeded,
    verify_own_naming,
)

__all__ = [
    "find_checkpoint_not_restored",
    "find_experiment_raised",
    "find_factory_failed",
    "find_gradient_wrong",
    "find_parameters_unused",
    "find_replicas_diverged",
    "find_search_unneeded",
    "find_strategy_raised",
    "find_strategy_wrong",
    "verify_own_naming",
]
