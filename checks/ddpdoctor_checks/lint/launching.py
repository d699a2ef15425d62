"""ENV007, ENV014, ENV017, ENV019, NET009 and NET010 as they stand in the source."""

from __future__ import annotations

from collections.abc import Iterable

from ddpdoctor.evidence import Evidence
from ddpdoctor.judge import Finding, Fix, check
from ddpdoctor_checks.environment import settings
from ddpdoctor_checks.lint.facts import LINT, facts_of, name_line, tell_fact

NEEDS = ("sources",)


@check("ENV007", family="source", needs=NEEDS, id="lint.local_rank", commands=LINT)
def find_local_rank_option(evidence: Evidence) -> Iterable[Finding]:
    """A parser takes one spelling of the local rank, and nothing reads LOCAL_RANK."""
    for fact in facts_of(evidence, "local-rank-option"):
        has, lacks = fact.details["has"], fact.details["lacks"]
        refused = (
            "torch.distributed.launch of torch 2.0 and later passes --local-rank, which argparse refuses"
            if has == "--local_rank"
            else "torch.distributed.launch before torch 2.0 passes --local_rank, which argparse refuses"
        )
        yield tell_fact(
            fact,
            f"The parser at {name_line(fact.place)} takes {has} but not {lacks}: {refused}; torchrun passes neither, "
            "and nothing here reads LOCAL_RANK.",
            Fix(
                "take both spellings, with what torchrun sets as the default",
                code='parser.add_argument("--local-rank", "--local_rank", type=int, '
                'default=int(os.environ.get("LOCAL_RANK", 0)))',
            ),
            why=f"add_argument has {has} alone, and LOCAL_RANK stands in none of the files",
            severity=None if has == "--local_rank" else "warning",
        )


@check("ENV017", family="source", needs=NEEDS, id="lint.spawn_guard", commands=LINT)
def find_spawn_unguarded(evidence: Evidence) -> Iterable[Finding]:
    """Processes are started while the file is imported, which its children do as well."""
    for fact in facts_of(evidence, "spawn-unguarded"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{name_line(fact.place)} starts processes with {function} whenever the file is imported: each "
            "child imports it first and fails there.",
            Fix("put it below a main guard", code=f'if __name__ == "__main__":\n    {fact.place.text}'),
            why="no test of __name__ stands above it, and the start method is spawn",
        )
    for fact in facts_of(evidence, "spawn-in-notebook"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} starts a function of the notebook: children cannot "
            "import it.",
            Fix(
                "move the function into a file and import it, or start the script with torchrun",
                code="from train import work\nmp.spawn(work, args=(world_size,), nprocs=world_size)",
            ),
            why="the function stands in a cell",
        )


@check("ENV019", family="source", needs=NEEDS, id="lint.initialisation", commands=LINT)
def find_group_order(evidence: Evidence) -> Iterable[Finding]:
    """Something needs the process group before it is made, or it is made twice."""
    for fact in facts_of(evidence, "group-not-made"):
        function = fact.details["function"]
        yield tell_fact(
            fact,
            f"{function} at {name_line(fact.place)} needs the process group, which is made only later.",
            Fix(
                "call init_process_group first",
                code=f"dist.init_process_group(backend)\n{fact.place.text}",
            ),
            why="no test stands before it, and nothing before it makes the group",
        )
    for fact in facts_of(evidence, "group-twice"):
        yield tell_fact(
            fact,
            f"init_process_group at {name_line(fact.place)} makes the process group a second time: the first is at "
            f"{name_line(fact.related[0].place)}.",
            Fix("make it once", code=f"if not dist.is_initialized():\n    {fact.place.text}"),
            why="no test stands before either, and nothing destroys the group in between",
        )


@check("ENV014", family="source", needs=NEEDS, id="lint.debugging", commands=LINT)
def find_switches(evidence: Evidence) -> Iterable[Finding]:
    """A debug setting stands in the script, or is made too late."""
    for fact in facts_of(evidence, "variable-set"):
        name, value = fact.details["name"], fact.details["value"]
        setting = settings.DEBUGGING.get(name)
        if (
            setting is not None
            and setting.matters(value)
            and (setting.where == "anywhere" or "gpu" in fact.details)
        ):
            yield tell_fact(
                fact,
                f"{name}={value}, a debug setting, is made at {name_line(fact.place)}: {setting.effect}.",
                Fix("take it out, and set it for a run that is to be examined", f"export {name}={value}"),
                why="no test stands before it",
                severity="warning",
                role="advice",
            )
    for fact in facts_of(evidence, "anomaly-mode"):
        yield tell_fact(
            fact,
            f"autograd's anomaly mode is turned on at {name_line(fact.place)}: each backward is checked and slow.",
            Fix(
                "turn it on for a run that is to be examined",
                code="torch.autograd.set_detect_anomaly(args.debug)",
            ),
            why="no test stands before it",
            severity="warning",
            role="advice",
        )
    for fact in facts_of(evidence, "variable-late"):
        name = fact.details["name"]
        yield tell_fact(
            fact,
            f"{name} is set at {name_line(fact.place)}, after {name_line(fact.related[0].place)} has started "
            "CUDA, which does not read it any more.",
            Fix("set it before the job starts", f"export {name}={fact.details['value']}"),
            why="CUDA reads it when it starts",
            severity="warning",
            role="advice",
        )


@check("NET009", family="source", needs=NEEDS, id="lint.port", commands=LINT)
def find_port_literal(evidence: Evidence) -> Iterable[Finding]:
    """A port that stands in the script is out of range or privileged."""
    for fact in facts_of(evidence, "port-literal"):
        port = int(fact.details["port"])
        wrong = "is above 65535" if port > 65535 else "is below 1024, which only root may open"
        yield tell_fact(
            fact,
            f"Port {port} at {name_line(fact.place)} {wrong}.",
            Fix(
                "take the port from the launcher, or one between 1024 and 65535 below the ephemeral range",
                code='os.environ.setdefault("MASTER_PORT", "29500")',
            ),
            why=f"the port is {port} in each run",
            severity=None if port > 65535 else "warning",
        )


@check("NET010", family="source", needs=NEEDS, id="lint.rendezvous_file", commands=LINT)
def find_fixed_file(evidence: Evidence) -> Iterable[Finding]:
    """Ranks meet at a file whose name is the same in each run."""
    for fact in facts_of(evidence, "rendezvous-file"):
        path = fact.details["path"]
        yield tell_fact(
            fact,
            f"Ranks meet at the file {path} ({name_line(fact.place)}) in each run: one that a killed run has "
            "left, or another job's, makes the next one fail or hang.",
            Fix("start with torchrun and meet by the environment", code='dist.init_process_group("nccl")'),
            why="the path is fixed, and nothing in the script removes it",
            severity="warning",
        )
