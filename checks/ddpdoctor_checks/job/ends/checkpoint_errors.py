"""CKP: checkpoints and directories over which ranks raced."""

from __future__ import annotations

import re

from ddpdoctor.evidence import RankSet
from ddpdoctor.evidence.training.fingerprints import FileUse
from ddpdoctor.judge import Fix
from ddpdoctor_checks.common.frames import tell_line, user_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.file_races import (
    find_removal,
    find_renaming,
    find_rival,
    find_writing,
    read_path,
)
from ddpdoctor_checks.job.ends.clauses import Clause, Describe


def _describe_early(diagnosis: Diagnosis, group: Group) -> Clause:
    path = read_path(group.first)
    named = f" {path}" if path else " a checkpoint"
    fine = diagnosis.world.minus(group.ranks)
    others = f", {name_set(fine)} did not" if fine else ""
    they = choose_form(len(group.failures), "it", "they")
    writing = find_writing(diagnosis.evidence, group.first, group.ranks)
    reason = "another rank had not written it yet, or had removed it"
    if writing is not None:
        line = user_line(writing.frames)
        reason = f"nothing makes it wait for rank {writing.rank}, which writes it{tell_line(line)}"
    return Clause(
        f"{they} found{named} missing or unfinished{others}: {reason} ({group.first.words})",
        (
            Fix((
                "write on rank 0 to a temporary name, rename the file, and synchronize all ranks with a "
                "barrier"
            ),
                code='if rank == 0:\n    torch.save(state, path + ".tmp")\n    os.replace(path + ".tmp", path)\n'
                'dist.barrier()\nstate = torch.load(path, map_location="cpu")'),
        ),
        {"path": path},
        confidence=None if writing is not None else "medium",
    )  # fmt: skip


def _describe_prefix(diagnosis: Diagnosis, group: Group) -> Clause:
    saved_wrapped = "Unexpected key(s)" in group.first.message and re.search(
        r'Unexpected key\(s\) in state_dict: "module\.', group.first.message
    )
    key = group.first.groups.get("key")
    example = f' ("module.{key}")' if key else ""
    if saved_wrapped:
        what = f"the checkpoint was saved from the wrapper and is loaded into the bare model{example}"
        fixes = (
            Fix("strip the prefix while loading",
                code='state = {k.removeprefix("module."): v for k, v in state.items()}\nmodel.load_state_dict(state)'),
            Fix("and save the model, not the wrapper", code="torch.save(model.module.state_dict(), path)"),
        )  # fmt: skip
    else:
        what = f"the checkpoint was saved from the bare model and is loaded into the wrapper{example}"
        fixes = (
            Fix("load into the model inside the wrapper", code="model.module.load_state_dict(state)"),
            Fix(
                "or load before the model is wrapped",
                code="model.load_state_dict(state)\nmodel = DistributedDataParallel(model)",
            ),
        )
    return Clause(what, fixes, {"key": key})


def _describe_directory(diagnosis: Diagnosis, group: Group) -> Clause:
    rival = find_rival(diagnosis.evidence, group.first, group.ranks)
    same_line = rival is not None and user_line(rival.frames) == group.first.line
    removal = None if same_line else find_removal(diagnosis.evidence, group.first, group.ranks)
    if removal is not None:
        return _describe_removed(group, removal)
    path = read_path(group.first)
    exists = group.first.entry is not None
    did = "made" if exists else "deleted"
    if rival is not None:
        who = f"rank {rival.rank} had already {did} {path or 'it'}{tell_line(user_line(rival.frames))}"
    else:
        who = f"another rank had {did} {path or 'the directory'} a moment before, as far as the logs show"
    line = group.first.line
    source = (line.source if line is not None else None) or ""
    if exists and (not source or "mkdir" in source or "makedirs" in source):
        fix = Fix("allow it to exist already", code="os.makedirs(path, exist_ok=True)")
    elif not exists and rival is not None and rival.operation == "delete":
        fix = Fix("allow it to be gone already", code="Path(path).unlink(missing_ok=True)")
    elif not exists:
        fix = Fix("allow it to be gone already", code="shutil.rmtree(path, ignore_errors=True)")
    else:
        fix = None
    again = (fix.code if fix is not None else None) or source
    once = None if again.endswith(":") else f"if rank == 0:\n    {again}\ndist.barrier()"
    fixes = (Fix("do it on one rank", code=once),)
    return Clause(
        who,
        fixes if fix is None else (fix, Fix("or do it on one rank", code=once)),
        {"path": path},
        confidence=None if rival is not None else "medium",
    )


def _describe_removed(group: Group, removal: FileUse) -> Clause:
    """Describe a file that ranks did not find since another one had deleted it, or the directory that held it."""
    line, path = user_line(removal.frames), read_path(group.first)
    ranks = RankSet([removal.rank])
    whole = "" if removal.operation == "delete" else "the directory of "
    return Clause(
        (
            f"{capitalise(name_set(ranks))} deleted {whole}{path}{tell_line(line)} while "
            f"{name_set(group.ranks)} still read it ({group.first.words})."
        ),
        (
            Fix(
                "let all ranks finish with the directory before one deletes it",
                code="dist.barrier()\nif rank == 0:\n    shutil.rmtree(path, ignore_errors=True)",
            ),
        ),
        {"path": path, "removed_by": removal.rank},
        whole=True,
        ranks=ranks,
        places=() if line is None else (in_frame(line, ranks, "culprit"),),
    )


def _describe_raced(diagnosis: Diagnosis, group: Group) -> Clause:
    """Describe a file that ranks could not rename, for another rank had written and renamed it as well."""
    other = find_renaming(diagnosis.evidence, group.first, group.ranks)
    path = read_path(group.first)
    ranks = group.ranks if other is None else group.ranks.union(RankSet([other.rank]))
    line = user_line(other.frames) if other is not None else None
    return Clause(
        (
            f"{capitalise(name_set(ranks))} all write {path}{tell_line(line)} and rename it, without "
            f"synchronization: the slower rank no longer finds it ({group.first.words})."
        ),
        (
            Fix(
                "put the rank into the temporary name, or write on one rank and let the other ranks wait",
                code='tmp = f"{path}.rank{dist.get_rank()}.tmp"',
            ),
        ),
        {"path": path},
        whole=True,
        ranks=ranks,
        places=() if line is None else (in_frame(line, ranks, "culprit"),),
    )


CLAUSES: dict[str, Describe] = {
    "CKP001": _describe_raced,
    "CKP005": _describe_directory,
    "CKP004": _describe_prefix,
    "CKP002": _describe_early,
}
