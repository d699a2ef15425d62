"""BKD004, BKD008 and BKD009 as they stand in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact

NEEDS = ("sources",)
_SET = 'local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)'


@check("BKD009", family="source", needs=NEEDS, id="lint.device_set", commands=LINT)
def find_device_unset(evidence: Evidence) -> Iterable[Finding]:
    """A collective takes the current device before one is set, or all ranks compute on the first GPU."""
    for fact in facts_of(evidence, "device-unset"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} takes the current device, and no rank has set its own: all "
            "may use GPU 0.",
            Fix("set the rank's device first", code=f"{_SET}\n{fact.place.text}"),
            why="the group is NCCL's, and nothing before sets the device",
            severity="warning",
        )
    for fact in facts_of(evidence, "device-shared"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} takes the current device, which no rank sets: all use "
            "GPU 0.",
            Fix("set the rank's device first", code=f"{_SET}\n{fact.place.text}"),
            why="the group is NCCL's, and nothing in the program sets the device",
            severity="warning",
        )


@check("BKD004", family="source", needs=NEEDS, id="lint.device_range", commands=LINT)
def find_device_by_rank(evidence: Evidence) -> Iterable[Finding]:
    """The rank in the whole job is taken for the number of a GPU."""
    for fact in facts_of(evidence, "device-by-rank"):
        rank = fact.details["rank"]
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} takes {rank}, the rank in the whole job, for the number of a GPU: on "
            "the second node there is none of that number.",
            Fix("take the local rank", code=_SET),
            why="the value was followed to RANK or get_rank()",
            severity="warning",
        )


@check("BKD008", family="source", needs=NEEDS, id="lint.tensor_device", commands=LINT)
def find_tensor_on_cpu(evidence: Evidence) -> Iterable[Finding]:
    """A collective of NCCL is given a tensor on the CPU."""
    for fact in facts_of(evidence, "tensor-on-cpu"):
        operation, tensor = fact.details["operation"], fact.details["tensor"]
        yield tell_fact(
            fact,
            f"{operation} at {name_line(fact.place)} is given {tensor}, a tensor on the CPU, and the group is NCCL's.",
            Fix(
                "make the tensor on the rank's GPU, or the group for both kinds of devices",
                code='tensor = torch.tensor(values, device="cuda")\n'
                '# or: dist.init_process_group("cpu:gloo,cuda:nccl")',
            ),
            why="the tensor is made without a device, and nothing moves it",
        )
