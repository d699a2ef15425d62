"""COL: collectives that ended a job, as far as texts and ends tell without a recorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.judge import EvidenceItem, Fix
from ddpdoctor_checks.common.frames import tell_line
from ddpdoctor_checks.common.places import in_frame
from ddpdoctor_checks.common.wording import capitalise, choose_form, join_words, name_set
from ddpdoctor_checks.job.blame.complaints import ID_TIMED_OUT
from ddpdoctor_checks.job.blame.diagnosis import Diagnosis, Group
from ddpdoctor_checks.job.blame.exits import list_exits
from ddpdoctor_checks.job.blame.failures import Level
from ddpdoctor_checks.job.blame.lagging import Lag, find_lag
from ddpdoctor_checks.job.calls.argument_fixes import ORDER, fix_mismatch
from ddpdoctor_checks.job.calls.last import LastCall, describe_call, find_last_mismatch, list_differing
from ddpdoctor_checks.job.calls.unfollowed import FIX, find_skipped_backward
from ddpdoctor_checks.job.ends.call_names import compare_calls, find_odd
from ddpdoctor_checks.job.ends.clauses import Clause, Describe
from ddpdoctor_checks.job.ends.rerun import rerun
from ddpdoctor_checks.job.ends.second_run import Again, look_again, place_failures

_FLIGHT = ("TORCH_FR_BUFFER_SIZE=2000", "TORCH_NCCL_DUMP_ON_TIMEOUT=1")
"""Torch's recorder of collectives and its dump (docs.pytorch.org, tutorials/unstable/flight_recorder_tutorial)."""


MOST_SIDES = 4
"""Sides of a mismatch that a sentence names."""


def _limit(group: Group) -> str:
    text = group.first.groups.get("ms", "")
    return f" after {int(text) / 1000:g} s" if text.isdigit() else ""


def _at(group: Group) -> str:
    line = group.first.line
    if line is None:
        return ""
    return f" at {line.file}:{line.line}" + (f" in {line.function}" if line.function != "<module>" else "")


def _call(group: Group) -> str:
    op, sequence = group.first.groups.get("op"), group.first.groups.get("sequence")
    return f"{op.lower()}{f' #{sequence}' if sequence else ''}" if op else "a collective"


def _describe_missing(diagnosis: Diagnosis, group: Group) -> Clause:
    missing = diagnosis.suspects
    who = name_set(missing) if missing else "others"
    name = capitalise(who)
    lag = find_lag(diagnosis)
    if lag is not None and group.first.entry is not None and group.first.entry.id == "nccl-timed-out":
        return _describe_lag(group, lag)
    by_id = group.first.entry is not None and group.first.entry.id == ID_TIMED_OUT
    call = "the first collective on GPUs" if by_id else "the barrier"
    return Clause(
        (f"{name} never reached {call} in which {name_set(group.ranks)} waited{_at(group)}{_limit(group)}."),
        (
            Fix(
                f"check what {who} did at that time: a rank-dependent branch, a loop that ended earlier, an "
                "exception that was caught"
            ),
            Fix(
                "where it was loading or preprocessing data, or compiling, before it: raise the timeout of "
                "init_process_group, or let the other ranks wait on a gloo group"
                if by_id
                else "call the barrier on every rank, outside of any rank-dependent `if`"
            ),
        ),
        {"missing": list(missing)},
        whole=True,
        ranks=missing,
        confidence="medium" if by_id else None,
    )  # fmt: skip


def _describe_lag(group: Group, lag: Lag) -> Clause:
    waiting = group.ranks
    known = lag.enqueued
    counts: dict[int, list[int]] = {}
    for rank in lag.ranks:
        counts.setdefault(lag.enqueued[rank], []).append(rank)
    late = join_words(
        f"{name_set(RankSet(ranks))} had enqueued #{count} last" for count, ranks in sorted(counts.items())
    )
    who, verb = name_set(waiting), choose_form(len(waiting), "waits", "wait")
    op = group.first.groups.get("op", "a collective").lower()
    seen = [
        EvidenceItem(
            "text",
            f"last enqueued: #{count}",
            RankSet(r for r, n in known.items() if n == count),
        )
        for count in sorted(set(known.values()))[:8]
    ]
    return Clause(
        f"{capitalise(who)} {verb} in {op} #{lag.number}{_at(group)}{_limit(group)}; {late}: "
        f"{choose_form(len(lag.ranks), 'it', 'they')} never issued it, or "
        f"{choose_form(len(lag.ranks), 'is', 'are')} blocked inside it.",
        (
            Fix(
                f"check what {name_set(lag.ranks)} did at that time: a rank-dependent branch, fewer "
                "batches, a slow or stuck data loader"
            ),
            Fix("record the collectives of all ranks with their source lines, for ddpdoctor analyze",
                f"{' '.join(_FLIGHT)} torchrun … train.py"),
            Fix("where all ranks run the same code, suspect the transport: try once without a network plugin",
                "NCCL_NET_PLUGIN=none NCCL_DEBUG=INFO torchrun … train.py"),
        ),
        {"sequence": lag.number, "enqueued": {str(rank): count for rank, count in list(lag.enqueued.items())[:256]}},
        whole=True,
        ranks=lag.ranks,
        seen=seen,
        confidence="medium",
    )  # fmt: skip


def _describe_splits() -> Clause:
    return Clause(
        "input_split_sizes and output_split_sizes of its all_to_all differ in the part that it sends to itself: the "
        "counts that it expects are not those that are sent",
        (
            Fix(
                "exchange the counts that are really sent, after tokens were dropped or capped",
                code="send = torch.bincount(destination[kept], minlength=world_size)\n"
                "receive = torch.empty_like(send)\ndist.all_to_all_single(receive, send)\n"
                "dist.all_to_all_single(out, x[kept], receive.tolist(), send.tolist())",
            ),
        ),
        victims=RankSet(),  # the same counts may be wrong on ranks that did not come to it first
    )


def _describe_mismatch(diagnosis: Diagnosis, group: Group) -> Clause:
    if "splits" in group.first.groups:
        return _describe_splits()
    last = find_last_mismatch(diagnosis.evidence) if "own" not in group.first.groups else None
    if last is not None:
        return _describe_last(diagnosis, group, last)
    groups = group.first.groups
    ranks = group.ranks
    if groups.get("rank", "").isdigit() and groups.get("other", "").isdigit():
        ranks = diagnosis.suspects or ranks.union(RankSet([int(groups["rank"]), int(groups["other"])]))
    again = None if "own" in groups else look_again(diagnosis, group, "detail", ("COL003",))
    fixes = [ORDER]
    if "own" in groups and "others" in groups:
        what = compare_calls(groups)
    elif "got" in groups:
        what = f"a peer sent {int(groups['got']):,} bytes where {int(groups['expected']):,} were expected"
    else:
        what = "data of a different size or dtype arrived than this collective expects"
    skipped = find_skipped_backward(diagnosis.evidence)
    if skipped is not None and "own" not in groups:
        return Clause(
            f"ranks issued mismatched collectives: {what}. {capitalise(skipped.told_since)}",
            (FIX,),
            {"odd": list(skipped.ranks)},
            ranks=skipped.ranks,
            victims=diagnosis.world.minus(skipped.ranks),
            places=skipped.places,
        )
    both = len(diagnosis.world) == 2
    told = "; with two ranks the wrong one cannot be determined" if both else ""
    details: dict[str, Any] = {
        key: groups[key] for key in ("own", "others", "got", "expected") if key in groups
    }
    if again is not None:
        told = f"; {_describe_again(again)}{told}"
        details.update(again.details)
    compared = group if "own" in groups else again.group if again is not None else None
    odd = find_odd(compared, diagnosis) if compared is not None else RankSet()
    places = again.places if again is not None else ()
    if odd and compared is not None:
        told += f"; {name_set(odd)} {choose_form(len(odd), 'differs', 'differ')} from the majority"
        details["odd"] = list(odd)
        places, ranks = place_failures(compared, odd), odd
    guessed = (
        not both and not odd and "own" not in groups
    )  # gloo's ring brings data from a neighbour of the odd rank
    if not odd and "own" not in groups:
        details["side"] = "unknown"
    elsewhere = _list_elsewhere(diagnosis, group) if "side" in details else []
    if elsewhere:
        told += f"; {_tell_elsewhere(elsewhere)} at that time"
        places = (*places, *(in_frame(line, there, "victim") for line, there in elsewhere))
    if guessed:
        told += "; the rank that detects it need not be the one that differs"
    if elsewhere:
        fixes.insert(
            0,
            Fix(
                "check why ranks were at different lines: a rank-dependent `if`, a loop that ends earlier on some "
                "ranks, an exception that some ranks caught"
            ),
        )
    untold = "own" not in groups and (again is None or again.details["rerun"] == "skipped")
    if untold and not _detail_crashes(diagnosis):
        fixes.insert(
            0,
            Fix(
                "rerun it with torch's own comparison of collectives, which names both",
                rerun(diagnosis, "--debug", "detail"),
            ),
        )
    return Clause(
        f"ranks issued mismatched collectives: {what}{told}",
        [*(again.fix if again is not None else ()), *fixes],
        details,
        ranks=diagnosis.world if both else ranks if ranks != group.ranks else None,
        seen=again.seen if again is not None else (),
        confidence="medium" if guessed else None,
        # Ranks whose calls are not known may be those that differ, whoever noticed it first.
        victims=diagnosis.world.minus(odd) if odd else RankSet(),
        places=places,
    )


def _list_elsewhere(diagnosis: Diagnosis, group: Group) -> list[tuple[Frame, RankSet]]:
    """Return the lines at which ranks lost their peers, where those are others than that of the mismatch."""
    own = group.first.line
    if own is None:
        return []
    lines: dict[tuple[str, int], tuple[Frame, RankSet]] = {}
    for failure in diagnosis.failures:
        line = failure.line
        if (
            failure.rank is None
            or failure.rank in group.ranks
            or line is None
            or failure.level == Level.ENDED
        ):
            continue
        if (line.file, line.line) != (own.file, own.line):
            known = lines.get((line.file, line.line), (line, RankSet()))[1]
            lines[line.file, line.line] = (line, known.union(RankSet([failure.rank])))
    return sorted(lines.values(), key=lambda each: -len(each[1]))[:MOST_SIDES]


def _tell_elsewhere(elsewhere: Sequence[tuple[Frame, RankSet]]) -> str:
    return join_words(
        f"{name_set(ranks)} {choose_form(len(ranks), 'was', 'were')}{tell_line(line)}"
        for line, ranks in elsewhere
    )


def _describe_last(diagnosis: Diagnosis, group: Group, last: LastCall) -> Clause:
    """Describe a mismatch by what each rank wrote down before it issued the call."""
    odd = RankSet().union(*(side.ranks for side in last.odd))
    named = odd or RankSet().union(*(side.ranks for side in last.sides))
    sides = sorted(last.sides, key=lambda side: side.ranks.minus(named) == side.ranks)
    told = join_words(
        f"{name_set(side.ranks)} {choose_form(len(side.ranks), 'issues', 'issue')} "
        f"{describe_call(side.call)}{tell_line(side.site)}"
        for side in sides[:MOST_SIDES]
    )
    doubt = "" if odd else "; the evidence does not show which side is wrong"
    where = [
        in_frame(side.site, side.ranks, "culprit")
        for side in sides
        if side.site and side.ranks.minus(named) != side.ranks
    ]
    return Clause(
        f"At collective #{last.number}{last.group.title} {told}{doubt}.",
        fix_mismatch(
            list_differing([side.call for side in last.sides]),
            [side.site for side in last.sides],
            last.sides[0].call.conditions,
        ),
        {"number": last.number, "odd": list(odd)},
        whole=True,
        ranks=named,
        victims=RankSet().union(*(side.ranks for side in last.sides)).minus(named),
        seen=tuple(
            EvidenceItem("calls", f"collective #{last.number}: {describe_call(side.call)}", side.ranks)
            for side in last.sides[:8]
        ),
        confidence="high",
        places=tuple(where),
    )


def _detail_crashes(diagnosis: Diagnosis) -> bool:
    """Whether a rank wraps a model and uses gloo, where ``DDP()`` was seen to crash with the level DETAIL."""
    processes = [view.process for view in diagnosis.views.ranks if view.process is not None]
    return any(
        "gloo" in (each.backend or "") and any(milestone.name == "wrap" for milestone in each.milestones)
        for each in processes
    )


def _describe_again(again: Again) -> str:
    """Return what a second run with torch's own comparison of calls showed."""
    groups = again.group.first.groups if again.group is not None else {}
    named = f": there {compare_calls(groups)}" if "own" in groups and "others" in groups else ""
    return f"{again.what}{named}"


def _fixes_timeout(diagnosis: Diagnosis) -> list[Fix]:
    """What names the rank that does not come: there is another way for each backend, and for a job nobody watched."""
    backends = {view.process.backend for view in diagnosis.views.ranks if view.process is not None} - {None}
    fixes = []
    if diagnosis.evidence.launch.command == "analyze":
        fixes.append(Fix("rerun it under ddpdoctor", rerun(diagnosis)))
    if any("nccl" in (backend or "") for backend in backends) or not backends:
        fixes.append(
            Fix("record the collectives with torch's Flight Recorder", rerun(diagnosis, environment=_FLIGHT))
        )
    if "gloo" in backends or any("cpu:gloo" in (backend or "") for backend in backends):
        fixes.append(
            Fix(
                (
                    "put a monitored barrier before the collective: rank 0 then names the ranks that do not "
                    "arrive"
                ),
                code="dist.monitored_barrier(timeout=datetime.timedelta(seconds=60), wait_all_ranks=True)",
            )
        )
    return fixes


def _describe_timeout(diagnosis: Diagnosis, group: Group) -> Clause:
    waiting = group.ranks
    suspects = diagnosis.suspects
    again = look_again(diagnosis, group, "detail", ("COL003", "COL002"))
    who = name_set(waiting) if waiting else "Ranks"
    where = _at(group)
    if suspects:
        rest = f"{name_set(suspects)} reported nothing: look there first"
    else:
        rest = "nothing shows which rank is the root cause"
    if again is not None:
        rest += f"; {_describe_again(again)}"
    return Clause(
        f"{capitalise(who)} waited in {_call(group)}{where} and gave up{_limit(group)}; {rest}.",
        (
            *(again.fix if again is not None else ()),
            *_fixes_timeout(diagnosis),
            Fix((
                "a longer timeout helps only where a rank is slow on purpose (evaluation, preprocessing on "
                "rank 0)"
            ),
                code="dist.init_process_group(backend, timeout=datetime.timedelta(hours=1))"),
        ),
        {
            "op": group.first.groups.get("op"),
            "sequence": group.first.groups.get("sequence"),
            "waiting": list(waiting)[:64],
            **(again.details if again is not None else {}),
        },
        whole=True,
        ranks=suspects,
        victims=RankSet(),
        confidence="medium" if suspects else "low",
        seen=again.seen if again is not None else (),
        places=again.places if again is not None else (),
    )  # fmt: skip


def _describe_early(diagnosis: Diagnosis, group: Group) -> Clause:
    early = diagnosis.suspects
    who = name_set(early) if early else "a rank"
    return Clause(
        f"{capitalise(who)} exited while {name_set(group.ranks)} still waited{_at(group)}; its part of the "
        "process group is gone.",
        (
            Fix(
                f"check why {who} had less to do: fewer batches, a loop that ended early, a "
                "rank-dependent return"
            ),
            Fix(
                "if the numbers of batches differ",
                code="with Join([model]):\n    for batch in loader:\n        ...",
            ),
            Fix("exit together", code="dist.barrier()\ndist.destroy_process_group()"),
        ),
        whole=True,
        ranks=early,
        seen=(EvidenceItem("exit", "exited cleanly, with status 0", early),)
        if _is_known(early, diagnosis)
        else (),
        places=list_exits(diagnosis.views.ranks, early),
    )


def _is_known(ranks: RankSet, diagnosis: Diagnosis) -> bool:
    """Whether the ends of ranks were seen, and are not concluded from those of others."""
    return any(view.process is not None and view.rank in ranks for view in diagnosis.views.ranks)


CLAUSES: dict[str, Describe] = {
    "COL002": _describe_missing,
    "COL008": _describe_early,
    "COL003": _describe_mismatch,
    "COL005": _describe_timeout,
}
