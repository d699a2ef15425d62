"""ERR: how ranks of a job died, and what hides the error that counts."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ddpdoctor.evidence import RankSet
from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor.text.shell import quote_word
from ddpdoctor_checks.common.frames import tell_line
from ddpdoctor_checks.common.wording import capitalise, choose_form, count_of, name_set
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.failures import Level
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.rerun import rerun, script_words

_HINTS: tuple[tuple[str, Fix], ...] = (
    (
        r"Expected more than 1 value per channel when training",
        Fix(
            "the last batch of a rank has one sample: drop it",
            code="loader = DataLoader(dataset, sampler=sampler, drop_last=True)",
        ),
    ),
    (
        r"Expected all tensors to be on the same device",
        Fix(
            "use the device of LOCAL_RANK everywhere, not cuda:0",
            code='device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))',
        ),
    ),
    (
        r"SyncBatchNorm expected input tensor to be on",
        Fix(
            "convert to SyncBatchNorm only where the model is on a GPU",
            code="if torch.cuda.is_available():\n    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
        ),
    ),
    (
        r"Torch not compiled with CUDA enabled",
        Fix(
            "install a PyTorch build with CUDA, or run on the CPU",
            code='device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        ),
    ),
    (
        r"Attempting to deserialize object on (?:a )?CUDA device",
        Fix("load onto the CPU first", code='state = torch.load(path, map_location="cpu")'),
    ),
    (
        r"Parent directory .{1,300} does not exist",
        Fix("make the directory before saving", code="os.makedirs(os.path.dirname(path), exist_ok=True)"),
    ),
    (
        r"^FileExistsError",
        Fix("an earlier run may have left it: allow it to exist (exist_ok=True), or choose another path"),
    ),
    (
        r"DefaultCPUAllocator: can't allocate memory|^MemoryError",
        Fix("use less memory per rank: every rank of a node holds its own copy", command="free -h"),
    ),
    (
        r"[Cc]an(?:'t|not) pickle",
        Fix(
            "whatever is sent to another process must be defined at module level: no lambda, no local "
            "function"
        ),
    ),
    (
        r"^FileNotFoundError",
        Fix(
            "check for the path on that host: it may not be on a shared file system, or rank 0 may "
            "write it later"
        ),
    ),
)
"""Errors that several people have asked about, with what helped them (list of failure modes: D27, B03, C04)."""


def _describe_exception(diagnosis: Diagnosis, group: Group) -> Clause:
    first = group.first
    line = first.line
    fixes = [
        fix for pattern, fix in _HINTS if re.search(pattern, f"{first.words}\n{first.outer}\n{first.message}")
    ][:1]
    if "might be asynchronously reported" in first.message:  # torch's words under any error that CUDA returns
        fixes.append(
            Fix(
                (
                    "CUDA may have reported it asynchronously: with synchronous kernel launches, the line "
                    "is the true one"
                ),
                rerun(diagnosis, "--blocking"),
            )
        )
    everyone = group.ranks == diagnosis.world
    where = f"correct {line.file}:{line.line}" if line is not None else "correct what the exception names"
    if everyone and len(diagnosis.world) > 1:
        fixes.append(
            Fix(f"{where}: every rank fails there, so one rank reproduces it", rerun(diagnosis, nproc=1))
        )
    elif len(diagnosis.world) > 1:
        only = name_set(group.ranks) if group.ranks else "one process"
        fixes.append(
            Fix(
                f"{where}; only {only} hit it, so check what differs there (a branch of its own, its data shard, its "
                "host)"
            )
        )
    else:
        fixes.append(Fix(where, rerun(diagnosis, nproc=1)))
    process = first.view.process
    said = process.exit_text if process is not None and process.exit_how is not None else None
    seen = (EvidenceItem("exit", f"it then ended with: {said}", group.ranks or None),) if said else ()
    outer = f", re-raised as {first.outer}{tell_line(first.outer_line)}" if first.outer else ""
    return Clause(f"{first.words}{outer}", fixes, seen=seen)


def _describe_exit(diagnosis: Diagnosis, group: Group) -> Clause:
    process = group.first.view.process
    how = process.exit_how if process is not None else None
    status = process.exit_code if process is not None else None
    said = f" ({process.exit_text})" if process is not None and process.exit_text else ""
    last = _last_line(process.last_words) if process is not None and not said else ""
    fixes: list[Fix] = []
    seen: list[EvidenceItem] = []
    rank = group.first.rank
    they = choose_form(len(group.failures), "it", "they")
    their = choose_form(len(group.failures), "its", "their")
    if how is None:
        told = f"; its last output: {last}" if last else ""
        what = f"{they} exited with status {status}, and no exception was seen{said}{told}"
        watched = process is not None and process.watched
        reason = (
            "" if watched or process is None else f" ({process.unwatched_reason or 'it was not watched'})"
        )
        if diagnosis.evidence.launch.command == "analyze":
            fixes.append(Fix("the log does not show where: rerun it under ddpdoctor", rerun(diagnosis)))
        else:
            fixes.append(Fix(f"read the end of its output{reason}", _log_command(diagnosis)))
    else:
        what = f"{they} called {how} with status {status}{said}"
        if last:
            who = RankSet([rank]) if rank is not None else None
            seen.append(EvidenceItem("log", f"last line on stderr: {last}", who))
        fixes.append(
            Fix(
                "raise an exception instead: an exit does not report its reason",
                code='raise RuntimeError("why")',
            )
        )
    if status == 2 and process is not None and process.last_words and "usage:" in process.last_words:
        what = f"{their} arguments were refused (exit status 2): {_usage_error(process.last_words)}"
        seen.clear()
        fixes = [
            Fix(
                ("pass the arguments that its usage describes"),
                f"python {' '.join(script_words(diagnosis)[:1])} --help",
            )
        ]
    details = {"status": status, "how": how, "text": process.exit_text if process else None}
    return Clause(what.rstrip("."), fixes, details, seen=seen)


def _last_line(words: str | None) -> str:
    return next((line.strip()[:240] for line in reversed((words or "").splitlines()) if line.strip()), "")


def _usage_error(words: str) -> str:
    found = re.search(r"error: ([^\n]{1,200})", words)
    return found[1] if found else "show its usage"


def _log_command(diagnosis: Diagnosis) -> str:
    return rerun(diagnosis, "--tee", "3")


def _describe_not_started(diagnosis: Diagnosis, group: Group) -> Clause:
    first = group.first
    place = re.search(r"\((?P<file>[\w./-]{1,200}), line (?P<line>\d{1,7})\)", first.message)
    at = f" ({place['file']}:{place['line']})" if place is not None and first.line is None else ""
    name = (first.type or "").rpartition(".")[2]
    if name == "ModuleNotFoundError":
        module = re.search(r"No module named '([\w.]{1,200})'", first.message)
        missing = module[1].partition(".")[0] if module else "it"
        what = f"a module is missing: {first.words}"
        fixes = [Fix((
            "install it into the environment that the ranks use, or start from the directory that contains "
            "it"
        ),
                     f"python -c 'import {missing}'")]  # fmt: skip
    elif name:
        what = f"the script does not parse: {first.words}{at}"
        fixes = [Fix("correct the line", f"python -m py_compile {script_words(diagnosis)[0]}")]
        spot = f" ({first.line.file}:{first.line.line})" if first.line is not None else ""
        return _begin_at(diagnosis, what, fixes, spot)
    else:
        return _describe_missing_file(diagnosis, group)
    return Clause(what, fixes)


def _describe_missing_file(diagnosis: Diagnosis, group: Group) -> Clause:
    """Python could not open the script, or found no module of that name: nothing of it has run."""
    first = group.first
    module, file = first.groups.get("module"), first.groups.get("file")
    if module is not None:
        package = module.partition(".")[0]
        what = f"there is no module {module} to run"
        fix = Fix(
            "use the name that Python imports, and start from the directory that contains the package",
            f"python -c 'import {package}; print({package}.__path__)'",
        )
    else:
        folder = PurePosixPath(file).parent if file is not None else PurePosixPath(".")
        reason = re.search(r"\[Errno \d{1,3}\] (.{1,200})$", first.words)
        why = reason[1].rstrip(".") if reason is not None else "no such file"
        what = f"the script {file or ''} cannot be opened: {why}".replace("  ", " ")
        fix = Fix("name a script that exists, relative to the directory of the command",
                  f"ls {quote_word(str(folder))}")  # fmt: skip
        if "[Errno 13]" in first.words and file is not None:
            fix = Fix("make it readable for the user who starts the job", f"ls -l {quote_word(file)}; id")
    return _begin_at(diagnosis, what, [fix])


def _begin_at(diagnosis: Diagnosis, what: str, fixes: list[Fix], place: str = "") -> Clause:
    """Tell what kept the script from starting; of a rank only where one was started."""
    if any(view.process is not None and view.process.started is not None for view in diagnosis.views.ranks):
        return Clause(what, fixes)
    return Clause(
        f"{capitalise(what)}{place}. Nothing was started.",
        fixes,
        whole=True,
        ranks=RankSet(),
        nobody=True,
    )


def _describe_at_exit(diagnosis: Diagnosis, group: Group) -> Clause:
    first = group.first
    ranks = group.ranks
    words = [t for t in first.view.texts if t.entry == "aborted-at-exit"]
    last = f' ("{words[0].text.strip()}")' if words else ""
    ended = sum(1 for each in diagnosis.victims if each.level == Level.ENDED)
    others = f" {count_of(ended, 'other rank')} received SIGTERM as a result." if ended else ""
    who = name_set(ranks) if ranks else "a rank"
    return Clause(
        f"{capitalise(who)} {choose_form(len(ranks) or 1, 'was', 'were')} aborted by {first.words}{last} "
        f"after {choose_form(len(ranks) or 1, 'its', 'their')} script had ended: its work was done, "
        f"although the exit code reports a failure.{others}",
        (
            Fix(
                "release the wrapper, and whatever else was reduced, before the interpreter exits: torch "
                "may abort a process that still holds it",
                code="del model\ngc.collect()\ntorch.distributed.destroy_process_group()",
            ),
        ),
        {"last_words": words[0].text if words else None},
        whole=True,
        seen=tuple(EvidenceItem("text", t.text, ranks or None) for t in words[:1]),
    )


CLAUSES: dict[str, Describe] = {
    "ERR010": _describe_at_exit,
    "ERR001": _describe_exception,
    "ERR006": _describe_exit,
    "ERR009": _describe_not_started,
}
