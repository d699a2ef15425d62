"""What is said of a job and its reference: the cause by factor, loss and tensors; what abstains; what rounding explains."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ddpdoctor.evidence import Evidence, Frame, RankSet
from ddpdoctor.evidence.training.fingerprints import OptimizerSetup, Training
from ddpdoctor.evidence.training.references import Gap, Reference, Samples, StepGap
from ddpdoctor.judge import CannotLook, Finding, NotApplicable
from ddpdoctor_checks.training.reference.against import find_reference_differs
from ddpdoctor_checks.training.reference.arithmetic import MOST, find_tolerance, find_update_tolerance

NAMES = ("first.weight", "first.bias", "last.weight")
SAME = Samples(32, 32, 32, 32, 32, 32, elements=512)


def gap(name: str, place: int, factor: float = 1.0, residual: float = 1e-7, norm: float = 1.0) -> Gap:
    apart = (abs(factor - 1) ** 2 + residual**2) ** 0.5
    return Gap(name, place, 100, "float32", norm, apart * norm, factor, residual * norm)


def gaps(factors: tuple[float, ...] = (1.0, 1.0, 1.0), residual: float = 1e-7) -> tuple[Gap, ...]:
    whole = factors[0] if len(set(factors)) == 1 else 1.3
    return (
        dataclasses.replace(gap("", -1, whole, residual if len(set(factors)) == 1 else 0.4), elements=300),
        *(gap(name, place, factors[place], residual) for place, name in enumerate(NAMES)),
    )


def equal() -> tuple[Gap, ...]:
    return gaps(residual=0.0)


def step(number: int = 1, **more: Any) -> StepGap:
    made: dict[str, Any] = {
        "values": equal(),
        "gradients": gaps(),
        "updates": gaps(),
        "samples": SAME,
        "job_losses": (1.0, 3.0),
        "reference_losses": (2.0,),
        "job_rates": (0.1,),
        "reference_rates": (0.1,),
        "drawn": False,
        "moved": 0.1 * (number - 1),
        "turned": 0.5 * (number - 1),
    }
    return StepGap(1, number, **{**made, **more})


def judge(*steps: StepGap, **more: Any) -> list[Finding]:
    made: dict[str, Any] = {"ranks": 1, "job_ranks": 4, "steps": steps}
    return list(find_reference_differs(Evidence(references=(Reference(**{**made, **more}),))))


def only(*steps: StepGap, **more: Any) -> Finding:
    (found,) = judge(*steps, **more)
    return found


def test_equal_runs_say_nothing() -> None:
    assert judge(step(), step(2), step(4)) == []


def test_without_a_reference_there_is_nothing_to_compare() -> None:
    with pytest.raises(NotApplicable):
        list(find_reference_differs(Evidence()))


@pytest.mark.parametrize(
    ("factor", "losses", "words"),
    [
        (
            4.0,
            (1.0, 3.0),
            "4.00x those of the reference on 1 rank from step 1 on: they are summed across ranks",
        ),
        (4.0, (8.0, 8.0), "4.00x those of the reference on 1 rank from step 1 on: the loss is multiplied"),
        (
            0.25,
            (0.5, 0.5),
            "0.25x those of the reference on 1 rank from step 1 on: the loss of a rank is a sum",
        ),
        (0.25, (1.0, 3.0), "0.25x those of the reference on 1 rank from step 1 on: they are divided by"),
        (3.0, (6.0, 6.0), "3.00x those of the reference on 1 rank from step 1 on: the loss is scaled by"),
        (1.5, (1.0, 3.0), "1.50x those of the reference on 1 rank from step 1 on: their direction agrees"),
    ],
)
def test_one_factor(factor: float, losses: tuple[float, ...], words: str) -> None:
    found = only(step(gradients=gaps((factor,) * 3), job_losses=losses), step(2, values=gaps((2.0,) * 3)))
    assert (found.code or "NUM009", found.severity, found.confidence) == ("NUM009", None, "high")
    assert words in found.message
    assert (found.details["cause"], found.details["factor"], found.details["step"]) == ("scale", factor, 1)


@pytest.mark.parametrize(
    ("factor", "residual", "losses", "line"),
    [(4.0, 1e-7, (1.0, 3.0), 14), (1.0, 0.5, (1.0, 3.0), 30), (3.0, 1e-7, (6.0, 6.0), 30)],
)
def test_the_line_that_reduces_gradients_is_that_of_their_factor(
    factor: float, residual: float, losses: tuple[float, ...], line: int
) -> None:
    frames = (Frame("train.py", 30, "main", "optimizer.step()"),)
    reduced = (Frame("train.py", 14, "sync", "dist.all_reduce(flat)"), *frames)
    setup = OptimizerSetup(1, "torch.optim.SGD", RankSet(range(4)), frames=frames, reduced=reduced)
    first = step(gradients=gaps((factor,) * 3, residual), job_losses=losses)
    reference = Reference(ranks=1, job_ranks=4, steps=(first,))
    (found,) = find_reference_differs(
        Evidence(training=(Training(ranks=RankSet(range(4)), optimizers=(setup,)),), references=(reference,))
    )
    assert [each.line for each in found.where] == [line]


def test_a_factor_of_some_tensors_names_them() -> None:
    found = only(step(gradients=gaps((1.0, 1.0, 4.0))))
    assert found.message.startswith("Gradients of last.weight are 4.00x those of the reference")
    assert found.details["agreeing"] == ["first.weight", "first.bias"]


def test_another_direction_names_tensors_and_what_arithmetic_explains() -> None:
    found = only(step(gradients=(gap("", -1, 1.0, 0.3), *gaps()[1:3], gap("last.weight", 2, 0.7, 0.5))))
    assert (found.details["cause"], found.confidence) == ("tensors", "medium")
    assert "Gradients of last.weight differ" in found.message


def test_gradients_of_replicas_that_differ_between_ranks() -> None:
    found = only(step(gradients=gaps()[:1] + gaps()[3:], apart=("first.weight", "first.bias")))
    assert found.details["cause"] == "not reduced"
    assert "first.weight and first.bias differ between ranks" in found.message
    with pytest.raises(CannotLook, match=r"used different gradients of first.weight"):
        judge(step(gradients=(), apart=NAMES))


def test_another_loss_on_the_same_samples() -> None:
    found = only(step(gradients=gaps((0.2, 0.9, 1.4), 0.5), job_losses=(1.0, 1.0)))
    assert found.details["cause"] == "loss"
    assert "0.5x as large" in found.message


def test_learning_rates_that_follow_the_number_of_ranks() -> None:
    found = only(step(job_rates=(0.4,)))
    assert (found.details["cause"], found.details["factor"], found.severity) == (
        "learning rate",
        pytest.approx(4),
        None,
    )
    assert only(step(job_rates=(0.4,)), widened=4).severity == "info"
    assert only(step(), step(2), step(4, job_rates=(0.2,))).details["step"] == 4


def test_updates_that_differ_while_gradients_agree() -> None:
    found = only(step(updates=gaps((1.0, 1.0, 0.5))))
    assert (found.details["cause"], found.details["tensors"]) == ("update", ["last.weight"])


def test_other_samples() -> None:
    met = dataclasses.replace(SAME, shared=4, met=20)
    assert (only(step(samples=met)).severity, only(step(samples=met)).details["cause"]) == (
        "info",
        "data order",
    )
    assert only(step(), step(2, samples=met)).details["step"] == 2
    with pytest.raises(CannotLook, match="changed at random"):
        judge(step(samples=dataclasses.replace(SAME, shared=0, met=0)))
    with pytest.raises(CannotLook, match=r"reads 32 samples and one of the reference 8: .*--against-args"):
        judge(step(samples=Samples(32, 32, 8, 8, 8, 8)))


def test_tensor_parallel_ranks_that_read_the_same_samples_count_once() -> None:
    assert judge(step(samples=dataclasses.replace(SAME, job=64))) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"values": gaps((1.0, 1.0, 0.5))}, "last.weight differs from the reference before the first step"),
        (
            {"values": (), "uncompared": {"w": "only this job has it"}},
            "no parameter could be compared.*only this job",
        ),
        ({"gradients": gaps((0.2, 1, 1), 0.5), "drawn": True}, "draws random numbers"),
        ({"gradients": gaps((0.2, 1, 1), 0.5), "batch_norms": 2}, r"BatchNorm \(2 modules\)"),
        ({"gradients": gaps((0.2, 1, 1), 0.5), "samples": None, "job_losses": ()}, "was not seen"),
        ({"step": 2}, "first step was not recorded"),
    ],
)
def test_what_cannot_be_compared_is_named(more: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotLook, match=words):
        judge(step(more.pop("step", 1), **more))


def test_dropout_and_batch_norm_do_not_matter_where_nothing_differs() -> None:
    assert judge(step(drawn=True, batch_norms=3)) == []


def test_a_reference_without_steps_says_why() -> None:
    with pytest.raises(CannotLook, match="several nodes"):
        judge(state="skipped", reason="the job runs on several nodes")
    with pytest.raises(CannotLook, match="before its first optimizer step with ValueError: at least 2"):
        judge(reason="the reference ended before its first optimizer step", error="ValueError: at least 2")
    with pytest.raises(CannotLook, match="with exit code 3 because it reached its time limit"):
        judge(reason="it ended", exit_code=3, ended="timed-out")


def test_a_gradient_that_cancels_out_is_as_exact_as_the_others() -> None:
    noise = gap("first.bias", 1, -0.5, 1.0, norm=1e-7)
    assert judge(step(gradients=(gaps()[0], gaps()[1], noise, gaps()[3]))) == []


def test_what_adam_makes_of_a_gradient_that_is_rounding_alone_is_not_compared() -> None:
    noise = gap("first.bias", 1, -0.5, 1.0, norm=1e-7)
    cancelled = (gaps()[0], gaps()[1], noise, gaps()[3])
    wide, whole = gap("first.bias", 1, 0.1, 1.0, norm=1.0), gap("", -1, 0.7, 0.5)
    updates = (whole, gaps()[1], wide, gaps()[3])
    later = step(2, values=(gap("", -1, 1.0, 0.05), gaps()[1], gap("first.bias", 1, 1.0, 0.1), gaps()[3]))
    assert judge(step(gradients=cancelled, updates=updates), later) == []
    other = (whole, gap("first.weight", 0, 0.5), wide, gaps()[3])
    assert only(step(gradients=cancelled, updates=other)).details["tensors"] == ["first.weight"]
    strayed = dataclasses.replace(later, values=(later.values[0], *gaps(residual=0.2)[1:]))
    assert only(step(gradients=cancelled, updates=updates), strayed).details["cause"] == "update"
    assert only(step(updates=updates)).details["tensors"] == ["first.bias"]


def test_the_tolerance_follows_dtype_and_number_of_summands() -> None:
    plain = find_tolerance(step())
    assert plain == pytest.approx(8 * (512 + 300) ** 0.5 * 2**-24)
    assert find_tolerance(step(precision="bfloat16")) > 20 * find_tolerance(step(precision="tfloat32")) / 8
    assert find_tolerance(step(precision="bfloat16")) <= MOST
    double = tuple(dataclasses.replace(each, dtype="float64") for each in gaps())
    assert find_tolerance(step(gradients=double)) == pytest.approx(plain * 2**-29)
    assert find_update_tolerance(1e-6) == pytest.approx(2e-3)


def test_later_steps_may_differ_by_what_the_parameters_do() -> None:
    near = (gap("", -1, 1.0, 1e-6), *gaps(residual=1e-6)[1:])
    assert judge(step(), step(4, values=near, gradients=gaps(residual=1e-5))) == []
    far = (gap("", -1, 1.0, 0.2), *gaps(residual=0.2)[1:])
    assert only(step(), step(4, values=far)).details["cause"] == "update"
    found = only(step(), step(4, values=near, gradients=gaps((2.0,) * 3)))
    assert (found.details["cause"], found.details["step"]) == ("tensors", 4)
