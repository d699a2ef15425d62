"""What a check says: a finding, with the places, the evidence and the fix that belong to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddpdoctor.evidence.codec import encode
from ddpdoctor.evidence.ranks import RankSet

SEVERITIES = ("error", "warning", "info")
CONFIDENCES = ("high", "medium", "low")
QUESTION = "question"
"""Role of what is likely and undecided: it asks, and counts as no issue."""
ROLES = ("cause", "consequence", "advice", QUESTION)
STATES = ("active", "withdrawn", "suppressed")
"""Suppressed: the user has said that it is not to count, see ``ddpdoctor.judge.suppression``."""

SUPPRESSORS = ("comment", "configuration", "baseline")
"""Means by which a finding may be suppressed."""

PLACE_DETAILS = ("function", "source", "host", "column", "cell", "indent")
"""Fields of a place that are absent where they do not apply."""


@dataclass(frozen=True, slots=True)
class Where:
    """A place in source. One entry per place, not per rank."""

    ranks: RankSet
    role: str
    """culprit, victim, condition, caller, or noticed (where an error showed that came from elsewhere)."""
    file: str
    line: int
    function: str | None = None
    source: str | None = None
    host: str | None = None
    column: int | None = None
    """Counted from 1; known where source was read."""
    cell: int | None = None
    """Cell of a notebook, counted from 1; the line is one of the cell."""
    indent: int | None = None
    """Columns of white space before ``source``; known where source was read."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report form; what does not apply is absent."""
        data: dict[str, Any] = {
            "ranks": list(self.ranks),
            "role": self.role,
            "file": self.file,
            "line": self.line,
        }
        data.update({k: v for k in PLACE_DETAILS if (v := getattr(self, k)) is not None})
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Where:
        """Read the report form; keys that are not known are ignored."""
        known = {k: data[k] for k in ("role", "file", "line", *PLACE_DETAILS) if k in data}
        return cls(ranks=RankSet(data["ranks"]), **known)


@dataclass(frozen=True, slots=True)
class EvidenceItem:
    """One observation that a finding rests on."""

    kind: str
    text: str
    ranks: RankSet | None = None
    source: tuple[str, int | None] | None = None
    """A file and line that it was read from."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report form."""
        data: dict[str, Any] = {"kind": self.kind, "text": self.text}
        if self.ranks is not None:
            data["ranks"] = list(self.ranks)
        if self.source is not None:
            data["source"] = {"file": self.source[0], "line": self.source[1]}
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> EvidenceItem:
        """Read the report form; keys that are not known are ignored."""
        ranks, source = data.get("ranks"), data.get("source")
        return cls(
            kind=data["kind"],
            text=data["text"],
            ranks=None if ranks is None else RankSet(ranks),
            source=None if source is None else (source["file"], source.get("line")),
        )


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to do: words, and where possible a command or code to paste."""

    text: str
    command: str | None = None
    code: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report form."""
        return {k: v for k in ("text", "command", "code") if (v := getattr(self, k)) is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Fix:
        """Read the report form; keys that are not known are ignored."""
        return cls(data["text"], data.get("command"), data.get("code"))


@dataclass(frozen=True, slots=True)
class Suppression:
    """Who said that a finding is not to count."""

    by: str
    """comment, configuration or baseline."""
    reason: str | None = None
    """Reason as given; None where there is none to give."""
    line: int | None = None
    """Line of the comment."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report form; what does not apply is absent."""
        return {k: v for k in ("by", "reason", "line") if (v := getattr(self, k)) is not None}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Suppression:
        """Read the report form; keys that are not known are ignored."""
        return cls(data["by"], data.get("reason"), data.get("line"))


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect that was seen.

    A check fills in what it saw; the runner fills in code, name and default severity from the check.
    """

    message: str
    """What is wrong: one sentence with who, what and where. Never what to do."""
    ranks: RankSet = field(default_factory=RankSet)
    """Culprit ranks, never victims."""
    victims: RankSet = field(default_factory=RankSet)
    nodes: tuple[str, ...] = ()
    """Hosts at fault."""
    pairs: tuple[tuple[str, str], ...] = ()
    where: tuple[Where, ...] = ()
    evidence: tuple[EvidenceItem, ...] = ()
    fix: tuple[Fix, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    confidence: str = "high"
    role: str = "cause"
    severity: str | None = None
    """Only to lower the code's default."""
    state: str = "active"
    decisive: bool = False
    """Whether it is what ended the job: it goes before whatever else is wrong."""
    code: str = ""
    name: str = ""
    suppression: Suppression | None = None
    """Who suppressed the finding, where its state is suppressed."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report form (``findings[]`` of the schema)."""
        decisive = {"decisive": True} if self.decisive else {}
        hidden = {"suppression": self.suppression.to_dict()} if self.suppression is not None else {}
        return {
            **decisive,
            **hidden,
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "confidence": self.confidence,
            "role": self.role,
            "state": self.state,
            "message": self.message,
            "ranks": list(self.ranks),
            "victims": list(self.victims),
            "nodes": list(self.nodes),
            "pairs": [list(pair) for pair in self.pairs],
            "where": [place.to_dict() for place in self.where],
            "evidence": [item.to_dict() for item in self.evidence],
            "fix": [fix.to_dict() for fix in self.fix],
            "details": encode(self.details),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Finding:
        """Read the report form; keys that are not known are ignored."""
        plain = ("code", "name", "severity", "confidence", "role", "state", "message", "details", "decisive")
        hidden = data.get("suppression")
        return cls(
            suppression=None if hidden is None else Suppression.from_dict(hidden),
            ranks=RankSet(data.get("ranks", ())),
            victims=RankSet(data.get("victims", ())),
            nodes=tuple(data.get("nodes", ())),
            pairs=tuple((first, second) for first, second in data.get("pairs", ())),
            where=tuple(Where.from_dict(item) for item in data.get("where", ())),
            evidence=tuple(EvidenceItem.from_dict(item) for item in data.get("evidence", ())),
            fix=tuple(Fix.from_dict(item) for item in data.get("fix", ())),
            **{key: data[key] for key in plain if key in data},
        )
