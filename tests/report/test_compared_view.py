"""The page's section of a job beside its reference."""

from __future__ import annotations

import dataclasses

from ddpdoctor.evidence.training.references import Reference
from ddpdoctor.report.html.caps import Caps
from ddpdoctor.report.html.compared import STEPS_SHOWN, view_compared
from ddpdoctor.testing import make_world
from tests.checks.test_training_reference import gaps, step
from tests.report.samples import sample_healthy
from tests.report.test_html import render

FOUR = Reference(
    ranks=1, job_ranks=4, steps=(step(gradients=gaps((4.0, 4.0, 4.0))), step(2, reference_rates=(0.4,)))
)


def test_steps_are_shown_beside_those_of_the_reference() -> None:
    (view,) = view_compared(dataclasses.replace(make_world(), references=(FOUR,)), Caps())
    assert (view.title, view.reason) == ("4 ranks beside 1 rank", None)
    first, second = view.steps
    assert (first.step, first.job_loss, first.reference_loss, first.samples) == ("1", "2", "2", "32 of 32")
    assert (first.values, first.gradients, first.rate) == ("0", "3.0e+00, 4.000x", "0.1")
    assert second.rate == "0.1 / 0.4"
    assert [(each.name, each.factor) for each in view.tensors][:1] == [("first.weight", "4.000")]


def test_many_steps_are_cut_and_the_cut_is_stated() -> None:
    many = dataclasses.replace(FOUR, steps=tuple(step(number) for number in range(1, STEPS_SHOWN + 2)))
    caps = Caps()
    (view,) = view_compared(dataclasses.replace(make_world(), references=(many,)), caps)
    assert len(view.steps) == STEPS_SHOWN
    assert caps.notes == [f"steps beside the reference: {STEPS_SHOWN} of {STEPS_SHOWN + 1} shown"]


def test_the_page_has_the_section_where_there_is_a_reference() -> None:
    report = sample_healthy()
    assert 'id="compared"' not in render(report)
    skipped = Reference(ranks=1, job_ranks=4, state="skipped", reason="the script <b>failed</b>")
    evidence = dataclasses.replace(report.evidence, references=(FOUR, skipped))
    page = render(dataclasses.replace(report, evidence=evidence))
    assert "4.000x" in page
    assert "Not compared: the script &lt;b&gt;failed&lt;/b&gt;." in page
