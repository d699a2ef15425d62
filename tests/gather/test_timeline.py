"""Times at the head of lines, and the axis that they make over logs, kernel logs and recorder dumps of several nodes."""

from __future__ import annotations

import calendar
import time
from pathlib import Path

import pytest

from ddpdoctor.aftermath import Sources
from ddpdoctor.aftermath.gathering import gather
from ddpdoctor.aftermath.joining.hosts import read_bus
from ddpdoctor.aftermath.stamps import SECOND, choose_year, last_stamp, read_stamp
from ddpdoctor.cli.incident import LOST_RANK, SILENT_S, write_incident
from ddpdoctor.evidence import RankSet
from ddpdoctor.plugins import load_plugins
from ddpdoctor.report.build import build_report
from ddpdoctor.report.timeline import format_gap, list_rows
from ddpdoctor.testing import STARTED


def local(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
    return int(time.mktime((year, month, day, hour, minute, second, 0, 0, -1))) * SECOND


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2025-06-10 14:22:31,117 INFO step 3", local(2025, 6, 10, 14, 22, 31) + 117_000_000),
        ("[2025-06-10 14:22:31] node-a:1:2 [0] NCCL WARN x", local(2025, 6, 10, 14, 22, 31)),
        (
            "2025-06-10T14:22:31.5Z stderr F x",
            calendar.timegm((2025, 6, 10, 14, 22, 31)) * SECOND + 500_000_000,
        ),
        ("2025-06-10T14:22:31+02:00 x", calendar.timegm((2025, 6, 10, 12, 22, 31)) * SECOND),
        (
            "[rank0]:[E610 14:22:31.117 ProcessGroupNCCL.cpp:629] x",
            local(2024, 6, 10, 14, 22, 31) + 117_000_000,
        ),
        ("W1218 20:27:21.000000 84933 torch/distributed/x.py:1] x", local(2024, 12, 18, 20, 27, 21)),
        ("[Mon Mar  2 04:11:09 2026] NVRM: Xid", local(2026, 3, 2, 4, 11, 9)),
        ("Jul  3 04:11:02 dgx-07 kernel: NVRM", local(2024, 7, 3, 4, 11, 2)),
        ("[1212301.100316] pcieport 0000:00:03.0: AER", None),
        ("Epoch 3: 12%|#2        | 113/940 [02:10<15:51]", None),
        ("2025-13-40 99:99:99 no time", None),
    ],
)
def test_times_of_loggers_syslog_kernel_and_c10d_are_read(line: str, expected: int | None) -> None:
    stamp = read_stamp(line)
    assert (stamp.wall_ns(2024) if stamp is not None else None) == expected


def test_year_is_that_of_the_lines_that_name_one_and_the_last_dated_line_counts() -> None:
    dated, undated = read_stamp("2023-01-02 03:04:05 x"), read_stamp("Jul  3 04:11:02 h kernel: x")
    assert dated is not None
    assert undated is not None
    assert choose_year([undated, dated], 0.0) == 2023
    assert choose_year([undated], float(calendar.timegm((2021, 6, 1, 0, 0, 0)))) == 2021
    assert last_stamp(b"2023-01-02 03:04:05 x\n  no time\n") == dated
    assert last_stamp(b"no time") is None


def test_bus_of_the_kernel_is_that_of_nccl() -> None:
    assert [read_bus(text) for text in ("PCI:0000:4c:00", "0001:07:00.0", "4c:00.0", "x")] == [
        "4c000",
        "107000",
        "4c000",
        "",
    ]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (41, "+41 s"), (-80, "-1 min 20 s"), (7500, "+2 h 05 min")]
)
def test_gaps_are_short(seconds: float, words: str) -> None:
    assert format_gap(seconds) == words


def test_incident_of_two_nodes_is_one_axis_and_one_sentence(tmp_path: Path) -> None:
    write_incident(tmp_path, now=1_780_000_000.0)
    sources = Sources()
    sources.add(tmp_path, named=True)
    evidence = gather(sources)
    assert evidence is not None
    report = build_report(evidence, registry=load_plugins().checks, started_at=STARTED, duration_s=1.0)
    first = report.findings[0]
    assert (first.code, first.ranks, first.confidence) == ("BKD010", RankSet([LOST_RANK]), "high")
    assert f"Ranks 8-15 (node-b) went silent {SILENT_S} s later" in first.message
    assert "the timeouts of ranks 0-7 10 min later are a consequence" in first.message
    rows = list_rows(report)
    assert [(row.kind, row.gap) for row in rows if row.zero] == [("cause", "0 s")]
    assert any(row.who == "node-b ranks 8-15" and row.gap == f"+{SILENT_S} s" for row in rows)
    assert any("all_reduce #241, not completed" in row.text for row in rows)
    assert [event.wall_ns for event in evidence.job[0].timeline] == sorted(
        e.wall_ns for e in evidence.job[0].timeline
    )
