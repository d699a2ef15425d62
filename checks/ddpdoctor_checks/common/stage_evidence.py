"""What the checks of the tiny world's stages share: missing results, deaths, and how stacks fold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddpdoctor.evidence import Evidence, RankExit, RankMessage, RankSet, StageRecord
from ddpdoctor.judge import CannotLook, EvidenceItem, Finding, NotApplicable
from ddpdoctor_checks.common.wording import count_of, join_words, name_set

_COMPLAINTS = re.compile(
    r"timed out waiting|connection (?:was )?(?:closed|reset|refused)|broken pipe|timed?[ -]?out after"
    r"|watchdog caught collective operation timeout|socket timeout|remote process exited|sigterm"
    r"|wait timeout",
    re.IGNORECASE,
)
"""What torch, gloo and NCCL say on a rank whose *peer* is gone or late: such a rank is a victim."""

_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
}
_SIGNALS |= {10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM"}
"""Linux's numbers (signal(7)); written out because a report is also judged where the numbers are others."""


def gather_ranks(messages: Iterable[RankMessage]) -> RankSet:
    """Return the ranks of all messages."""
    return RankSet().union(*(message.ranks for message in messages))


_BOILERPLATE = re.compile(
    r"\[/[^\s\][]{1,300}\.(?:cc|cpp|h):\d{1,6}\] ?|\s{0,4}This is typically caused by .*", re.DOTALL
)
"""gloo's own source line, and its advice to look at the other ranks, which is what is being done here."""


def shorten_error(text: str) -> str:
    """Return an error's text for a sentence, without what gloo adds to each of its errors."""
    return _BOILERPLATE.sub("", text).strip() or text


def is_complaint(text: str) -> bool:
    """Whether an error only says that a peer is gone or late."""
    return bool(_COMPLAINTS.search(text))


def hosts_of_ranks(evidence: Evidence, ranks: RankSet) -> tuple[str, ...]:
    """Return the hosts on which ``ranks`` run, in rank order, each once.

    A rank that never reported is where the launch puts it, if that node is known.
    """
    wanted = set(ranks)
    hosts = {facts.rank: facts.host for facts in evidence.ranks if facts.rank in wanted}
    launch = evidence.launch
    if len(hosts) < len(wanted) and launch.nproc * launch.nnodes == launch.world_size:
        nodes = {facts.node: facts.host for facts in evidence.nodes}
        for rank in wanted - hosts.keys():
            if rank // launch.nproc in nodes:
                hosts[rank] = nodes[rank // launch.nproc]
    return tuple(dict.fromkeys(hosts[rank] for rank in sorted(hosts)))


def name_signal(number: int) -> str:
    """Return ``signal 9 (SIGKILL)``."""
    name = _SIGNALS.get(number)
    return f"signal {number} ({name})" if name else f"signal {number}"


def describe_exit(gone: RankExit) -> str:
    """Return how a rank died, as the end of a sentence that starts with the rank."""
    if gone.signal is not None:
        text = f"was killed by {name_signal(gone.signal)}"
    elif gone.exit_code is not None:
        text = f"exited with status {gone.exit_code}"
    else:
        text = "is gone without a clean exit"
    words = find_last_words(gone.detail or "")
    return f"{text} ({words})" if words else text


FROM_OUTSIDE = frozenset((9, 15))
"""SIGKILL and SIGTERM: nothing in a rank of ours sends them to itself, the kernel's memory killer and people do."""

_NOISE = re.compile(r"^\s|^\[?(rank\d{1,7}\]:)?\[?W\d{4} |Warning: |^Traceback |^Extension modules: ")
"""Lines that say nothing of an end: indented ones (sources, frames), warnings of Python and of torch's log."""
_FATAL = re.compile(r"^Fatal Python error: .*", re.MULTILINE)
LAST_WORDS_LENGTH = 200
"""Characters of a last line that a sentence bears."""


def find_last_words(text: str) -> str:
    """Return the one line of a dead rank's stderr that says most about its end; empty where none does."""
    fatal = _FATAL.search(text)
    lines = [line for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
    said = fatal[0] if fatal else (lines[-1] if lines else "")
    return said if len(said) <= LAST_WORDS_LENGTH else said[:LAST_WORDS_LENGTH] + " …"


def describe_deaths(dead: Sequence[RankExit]) -> str:
    """Fold ranks that died in the same way: ``ranks 2-3 were killed by signal 9 (SIGKILL)``."""
    groups: dict[str, list[int]] = {}
    for each in dead:
        groups.setdefault(describe_exit(each), []).append(each.rank)
    parts = []
    for text, ranks in groups.items():
        verb = text
        for one, several in (("was ", "were "), ("is ", "are ")):
            if len(ranks) > 1 and text.startswith(one):
                verb = several + text.removeprefix(one)
        parts.append(f"{name_set(RankSet(ranks))} {verb}")
    return join_words(parts, few=4)


def unclean_exits(evidence: Evidence, stages: Sequence[str | None]) -> tuple[RankExit, ...]:
    """Return the ranks that died in ``stages`` before their clean end, in order of rank."""
    gone = [each for each in evidence.exits if each.stage in stages and not each.finished]
    return tuple(sorted(gone, key=lambda each: each.rank))


def stage_records(evidence: Evidence, stage: str) -> tuple[StageRecord, ...]:
    """Return what the nodes recorded of one stage."""
    return tuple(record for record in evidence.stages if record.stage == stage)


def explain_missing(evidence: Evidence, stage: str, what: str) -> CannotLook | NotApplicable:
    """Return the exception that says why ``what`` has no result; the caller raises it."""
    records = stage_records(evidence, stage)
    if not records:
        chosen = evidence.launch.stages
        if chosen and stage not in chosen:
            return NotApplicable(f"stage {stage} was not selected")
        return CannotLook(f"stage {stage} left no record, so nothing is known of {what}")
    statuses = {record.status for record in records}
    if statuses == {"skipped"}:
        return NotApplicable(records[0].reason or f"stage {stage} was skipped")
    words = {"cut": "was stopped at its limit", "failed": "failed", "unreached": "was not reached"}
    for status, text in words.items():
        record = next((each for each in records if each.status == status), None)
        if record is not None:
            reason = f" ({record.reason})" if record.reason else ""
            text = "was stopped" if record.limit_option else text
            return CannotLook(f"stage {stage} {text}{reason} before {what} had a result")
    return CannotLook(f"stage {stage} ended, but left no result of {what}")


@dataclass(frozen=True, slots=True)
class Blame:
    """Whose fault it is that some ranks raised: order of blame is own error, death, silence, complaint."""

    said: tuple[RankMessage, ...]
    """What to quote: the ranks' own errors, else their complaints."""
    ranks: RankSet
    victims: RankSet
    role: str = "cause"
    confidence: str = "high"
    silence: str = ""
    """End of a sentence on those who said nothing, or empty."""


def assign_blame(evidence: Evidence, failures: Iterable[RankMessage], heard: RankSet) -> Blame:
    """Tell the ranks that failed from those that only lost them.

    Args:
        evidence: all of it; ranks that died before their end are looked up in it.
        failures: what the ranks said; at least one.
        heard: ranks that have a result, good or bad; others of the world are silent.
    """
    said = tuple(failures)
    everyone = gather_ranks(said)
    own = tuple(each for each in said if not is_complaint(each.text))
    if own:
        ranks = gather_ranks(own)
        return Blame(own, ranks, everyone.minus(ranks))
    dead = RankSet(each.rank for each in evidence.exits if not each.finished)
    if dead:
        return Blame(said, dead, everyone.minus(dead), "consequence", "high", f"; {name_set(dead)} had died")
    silent = RankSet.span(evidence.launch.world_size).minus(heard.union(everyone))
    if silent:
        words = f"; {name_set(silent)} left no result"
        return Blame(said, silent, everyone, "cause", "medium", words)
    return Blame(said, everyone, RankSet(), "cause", "medium")


def quote_messages(messages: Iterable[RankMessage], most: int = 6) -> tuple[EvidenceItem, ...]:
    """Return what the ranks said as evidence: the first ``most`` texts, and a count of the rest."""
    said = list(messages)
    items = [EvidenceItem("rank", each.text, each.ranks) for each in said[:most]]
    if len(said) > most:
        items.append(EvidenceItem("rank", f"{count_of(len(said) - most, 'more message')} omitted"))
    return tuple(items)


_RAISED = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Timeout|Interrupt|Failed)\b")
"""How a probe words an exception: ``RuntimeError: …``. All other texts speak of values."""


def is_exception(text: str) -> bool:
    """Whether a rank's text speaks of an exception and not of wrong values."""
    return bool(_RAISED.match(text))


def list_wrong(failures: Iterable[RankMessage]) -> list[RankMessage]:
    """Return the failures that are wrong values, not exceptions."""
    return [each for each in failures if not is_exception(each.text)]


MOST_ALIKE = 8
"""Findings of one kind that are shown one by one; what is beyond is folded into one more."""


def fold_alike(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the first findings as they are, and all further ones as one that names their ranks and hosts."""
    listed = list(findings)
    yield from listed[:MOST_ALIKE]
    rest = listed[MOST_ALIKE:]
    if rest:
        hosts = tuple(dict.fromkeys(host for each in rest for host in each.nodes))
        times = count_of(len(rest), "more time")
        yield replace(
            rest[0],
            message=f"The same holds {times} on {join_words(hosts)}; first: {rest[0].message}",
            ranks=RankSet().union(*(each.ranks for each in rest)),
            nodes=hosts,
            pairs=tuple(pair for each in rest for pair in each.pairs)[:64],
            details={"folded": len(rest), "first": rest[0].details},
        )


def list_cases(rows: Iterable[dict[str, object]], most: int = 50) -> dict[str, object]:
    """Return rows for ``details``, capped at ``most`` with the number that was left out."""
    listed = list(rows)
    return {"cases": listed[:most], "cases_left_out": max(0, len(listed) - most)}
