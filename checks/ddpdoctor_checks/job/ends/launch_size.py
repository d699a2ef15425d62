"""ENV021: a launcher that was asked for several ranks and started its script in fewer processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath

from ddpdoctor.evidence import Evidence, RankSet
from ddpdoctor.evidence.job import ProcessRecord
from ddpdoctor.judge import EvidenceItem, Finding, Fix, check
from ddpdoctor.text.shell import quote_words
from ddpdoctor_checks.common.jobs import JOB
from ddpdoctor_checks.common.wording import count_of
from ddpdoctor_checks.job.ends.clauses import require_job

COUNTS = {
    ("accelerate", "launch"): "--num-processes",
    ("accelerate-launch",): "--num-processes",
    ("accelerate.commands.launch",): "--num-processes",
}
"""Words that make a command a launcher's which may start fewer ranks than asked -> its option for their number.

Accelerate takes ``--num_processes`` for a wish: without ``--multi_gpu``, or a configuration of the same meaning, its
``simple_launcher`` starts the script once, on a machine with at most one GPU. torchrun, mpirun and srun start as many
processes as they are asked for, or fail.
"""


@check("ENV021", family="crash", needs=(), id="crash.launch_size", required=False, commands=JOB)
def find_small_launch(evidence: Evidence) -> Iterable[Finding]:
    """A launcher was asked for several ranks and started its script in fewer processes."""
    require_job(evidence)
    for launcher, asked, started, scripts in list_small_launches(evidence):
        words = scripts[0].command[1:]
        failed = any(each.exit_code for each in scripts)
        yield Finding(
            message=(
                f"`accelerate launch` was asked for {asked} processes and started {started}: "
                f"{quote_words(words[:1])} ran with a world size of {started}."
            ),
            ranks=RankSet(each.rank for each in scripts if each.rank is not None),
            evidence=(
                EvidenceItem("command", quote_words(launcher.command)[:300]),
                *(
                    EvidenceItem("process", f"pid {each.pid} without RANK and WORLD_SIZE")
                    for each in scripts[:4]
                    if each.world_size is None
                ),
            ),
            fix=(
                Fix(
                    f"start {count_of(asked, 'rank')} directly; Accelerate reads what torchrun sets",
                    f"ddpdoctor run --nproc {asked} {quote_words(words)}",
                ),
                Fix("or pass --multi_gpu, or choose several processes in `accelerate config`"),
            ),
            details={"asked": asked, "started": started, "launcher": "accelerate"},
            severity="error" if failed else None,
            decisive=failed,
        )


def list_small_launches(
    evidence: Evidence,
) -> Iterator[tuple[ProcessRecord, int, int, list[ProcessRecord]]]:
    """Yield launchers that started their script in fewer processes than asked: how many were, and those processes."""
    for launcher in evidence.processes:
        asked = read_count(launcher.command)
        if asked is None:
            continue
        below = list(_list_below(launcher, evidence.processes))
        scripts = [each for each in below if each.parent == launcher.pid and _runs_script(each, launcher)]
        started = max(
            len(scripts),
            len({each.rank for each in below if each.is_rank and each.rank is not None}),
            *(each.world_size or 0 for each in below),
            0,
        )
        # The others of a launch that has only begun may still come; an end that was not seen shows nothing either.
        if not scripts or started >= asked or not all(map(_has_ended, scripts)):
            continue
        yield launcher, asked, started, scripts


def read_count(command: Sequence[str]) -> int | None:
    """Return for how many ranks a command asks a launcher of `COUNTS`; None where it asks for one or is another.

    Args:
        command: of a process. What follows the script is the script's: a value counts where it comes before that.
    """
    names = [PurePosixPath(word).name for word in command[:8]]
    for words, option in COUNTS.items():
        for start in range(len(names)):
            if tuple(names[start : start + len(words)]) == words:
                return _read_value(command[start + len(words) :], option)
    return None


def _read_value(words: Sequence[str], option: str) -> int | None:
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.endswith((".py", ".pyz")) or word in ("-m", "--module"):
            return None
        if name.replace("_", "-") == option:
            value = value if equals else next(iter(words[number + 1 :]), "")
            return int(value) if value.isascii() and value.isdigit() and int(value[:6]) > 1 else None
    return None


def _runs_script(process: ProcessRecord, launcher: ProcessRecord) -> bool:
    """Whether the process runs what the launcher was given to run: the end of the one command is that of the other."""
    own = process.command[1:]
    own = own[1:] if own[:1] == ("-u",) else own
    return process.watched and bool(own) and launcher.command[-len(own) :] == own


def _list_below(launcher: ProcessRecord, processes: Sequence[ProcessRecord]) -> Iterator[ProcessRecord]:
    """Yield the processes that a launcher started, and those that these started."""
    above = {(launcher.node, launcher.pid)}
    rest = [each for each in processes if (each.node, each.pid) not in above]
    while found := [each for each in rest if (each.node, each.parent) in above]:
        yield from found
        above |= {(each.node, each.pid) for each in found}
        rest = [each for each in rest if each not in found]


def _has_ended(process: ProcessRecord) -> bool:
    return process.clean_end or process.exit_code is not None or process.signal is not None
