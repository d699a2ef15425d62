"""A few quick cases under `ddpdoctor run`; `make accuracy` runs them all."""

from __future__ import annotations

import pytest

from tests.faults.score import score_trial
from tests.faults.trial import find_obstacle, try_case
from tests.faults.truth import CASES, load_truth
from tests.marks import mostly_long

SAMPLE = (
    "exit-unknown-option",
    "hang-validation-through-wrapper",
    "healthy-telemetry-thread",
    "module-missing",
    "raise-in-helper",
    "segfault-in-helper",
    "variables-absent-key",
)
"""One of each manner of ending, those that take the least time: 2 to 6 s each on two cores, those that hang or are slow
10 to 15 s."""
PLAIN = (
    "exit-unknown-option",
    "hang-validation-through-wrapper",
    "healthy-telemetry-thread",
    "raise-in-helper",
)
"""Those of a plain run: one that ends by itself, one that is ended, a healthy one and an exception."""


@pytest.mark.parametrize("name", mostly_long(SAMPLE, *PLAIN))
def test_a_case_is_judged_as_its_truth_says(name: str) -> None:
    truth = load_truth(CASES / name)
    obstacle = find_obstacle(truth)
    if obstacle is not None:
        pytest.skip(obstacle)
    trial = try_case(truth)
    score = score_trial(truth, trial)
    assert score.is_right, f"{score}\n{trial.output}"
