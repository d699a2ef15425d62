"""What ranks wrote down of optimizers that began anew after a load, folded to `ddpdoctor.evidence.training.loads`."""

from __future__ import annotations

from collections.abc import Mapping

from ddpdoctor.evidence import Frame, RankSet
from ddpdoctor.evidence.training.loads import FreshOptimizer
from ddpdoctor.facts.training_events import ResumeEvent
from ddpdoctor.watch.readers.records import Shortener

KINDS = frozenset({"resume", "resumed"})
"""Events that tell of it."""
KEPT = 20


def fold_resumes(ranks: Mapping[int, list[ResumeEvent]], shorten: Shortener) -> tuple[FreshOptimizer, ...]:
    """Return the optimizers that began anew, and whose state was not loaded afterwards.

    Args:
        ranks: Rank -> its events of `KINDS`.
        shorten: Names files and reads source lines.
    """
    rows: dict[tuple[str, str, str, tuple[Frame, ...], tuple[Frame, ...]], list[int]] = {}
    for rank, events in ranks.items():
        healed = {int(event["number"]) for event in events if event["event"] == "resumed"}
        for event in events:
            if event["event"] == "resume" and int(event["number"]) not in healed:
                key = (
                    str(event["class"]),
                    ", ".join(str(name) for name in event["names"]),
                    str(event["counter"]),
                    shorten.frames(event.get("frames")),
                    shorten.frames(event.get("step_frames")),
                )
                rows.setdefault(key, []).append(rank)
    return tuple(FreshOptimizer(RankSet(who), *key) for key, who in list(rows.items())[:KEPT])
