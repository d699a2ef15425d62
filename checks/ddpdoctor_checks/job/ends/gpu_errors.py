"""ERR: errors of the GPU that end ranks."""

from __future__ import annotations

from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor_checks.common.wording import name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.views import View
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.rerun import rerun
from ddpdoctor_checks.job.ends.second_run import look_again


def _find_blocking(view: View) -> str | None:
    """Return the setting by which every kernel was waited for: from the start, or made before CUDA was in use."""
    made = view.process.settings if view.process is not None else ()
    values = {
        **view.variables,
        **{each.name: each.value for each in made if each.how == "set" and not each.cuda},
    }
    for name in ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL"):
        if values.get(name, "0") not in ("", "0"):
            return f"{name}={values[name]}"
    return None


def _describe_device_error(diagnosis: Diagnosis, group: Group) -> Clause:
    first = group.first
    blocking = _find_blocking(first.view)
    again = None if blocking else look_again(diagnosis, group, "blocking", ("ERR007",))
    assertions = [t for t in first.view.texts if t.entry == "device-assertion"]
    seen = [EvidenceItem("text", t.text, group.ranks or None) for t in assertions[:1]]
    what = first.groups.get("what", first.words)
    correct = "correct what this line passes to the kernel: an index, a label, a shape"
    fixes: list[Fix] = []
    if blocking:
        where = f"{blocking} was set, so this is the line"
        fixes.append(Fix(correct))
    elif again is not None and again.group is not None and again.group.first.line is not None:
        line = again.group.first.line
        where = f"{'detected there; ' if again.places else ''}{again.what}"
        fixes.append(Fix(correct.replace("this line", f"{line.file}:{line.line}")))
    else:
        where = "CUDA errors are asynchronous: this line is where it was detected, not where it happened"
        where += f"; {again.what}" if again is not None else ""
        fixes += again.fix if again is not None else ()
        fixes.append(
            Fix("rerun it with synchronous kernel launches: then the line is the true one",
                rerun(diagnosis, "--blocking")),
        )  # fmt: skip
    if assertions:
        test = assertions[0].groups.get("assertion", "")
        fixes.append(Fix(f"assertion that failed in the kernel: {test}. Check the index or the label before it is used",
                         code="assert labels.min() >= 0 and labels.max() < num_classes"))  # fmt: skip
    if again is not None:
        seen += again.seen
    return Clause(
        f"{what} ({where})",
        fixes,
        {"blocking": blocking is not None, **(again.details if again is not None else {})},
        seen=seen,
        places=again.places if again is not None else (),
    )


def _describe_device_memory(diagnosis: Diagnosis, group: Group) -> Clause:
    size = group.first.groups.get("size")
    asked = f" ({size} asked for)" if size else ""
    some = 0 < len(group.ranks) < len(diagnosis.world)
    only = f"only {name_set(group.ranks)}: another process uses memory there, or its batches are longer"
    fixes = [
        Fix((
            "list the processes that use GPU memory"
        ), "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv"),
        Fix(
            "use smaller batches with gradient accumulation, or activation checkpointing",
            code="output = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        ),
        Fix("if memory is fragmented",
            rerun(diagnosis, environment=("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",))),
    ]  # fmt: skip
    if some:
        fixes.insert(0, Fix(f"{only}; load checkpoints with map_location, and set the device first",
                            code='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'))  # fmt: skip
    return Clause(f"the GPU ran out of memory{asked}", fixes, {"asked": size})


CLAUSES: dict[str, Describe] = {
    "ERR007": _describe_device_error,
    "ERR008": _describe_device_memory,
}
