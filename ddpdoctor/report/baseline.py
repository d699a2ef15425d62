"""A baseline: the findings that an old project has, in a file, so that only new ones count."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ddpdoctor.judge.finding import Finding
from ddpdoctor.judge.fingerprint import fingerprint
from ddpdoctor.judge.suppression import BaselineEntry

SCHEMA = "ddpdoctor.baseline"
VERSION = 1


def write_baseline(findings: Iterable[Finding]) -> str:
    """Return the text of a baseline with all findings that count: sorted, one entry for those that are alike."""
    entries: dict[str, dict[str, Any]] = {}
    counts: Counter[str] = Counter()
    for each in findings:
        if each.state != "active" or not each.where:
            continue
        mark = fingerprint(each)
        counts[mark] += 1
        place = each.where[0]
        entries[mark] = {"code": each.code, "file": place.file, "source": place.source or ""}
    rows = [{**row, "count": counts[mark], "fingerprint": mark} for mark, row in entries.items()]
    rows.sort(key=lambda row: (row["file"], row["code"], row["source"], row["fingerprint"]))
    data = {"schema": SCHEMA, "version": VERSION, "findings": rows}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def read_baseline(text: str) -> tuple[BaselineEntry, ...]:
    """Read what `write_baseline` gave; keys that are not known are ignored.

    Raises:
        ValueError: it is no baseline, or one of another version.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"not JSON: {problem}") from problem
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError("not a ddpdoctor baseline")
    if data.get("version") != VERSION:
        raise ValueError(f"baseline of version {data.get('version')}, this version reads {VERSION}")
    rows = data.get("findings")
    if not isinstance(rows, list):
        raise ValueError("damaged: findings is not a list")
    return tuple(_read_entry(row) for row in rows)


def _read_entry(row: Any) -> BaselineEntry:
    if not isinstance(row, dict) or type(row.get("count")) is not int:
        raise ValueError("damaged: a finding without count")
    texts = {
        key: row[key] for key in ("fingerprint", "code", "file", "source") if isinstance(row.get(key), str)
    }
    if len(texts) < 4:
        raise ValueError("damaged: a finding without fingerprint, code, file or source")
    return BaselineEntry(**texts, count=row["count"])
