"""Work that a program gives to a cluster which others have started."""

from __future__ import annotations

import json
from pathlib import Path

from ddpdoctor.evidence import Evidence, Launch
from ddpdoctor.evidence.job import JobEnd, ProcessRecord
from ddpdoctor.report.build import describe_unseen
from ddpdoctor.watch.launch.clusters import LOOK_S, ClusterWatch

EVENT = {"event": "cluster", "wall_ns": 1, "engine": "Ray", "address": "10.0.0.1:6379"}


def test_it_is_said_once_what_is_not_watched_and_what_to_type(tmp_path: Path) -> None:
    said: list[str] = []
    watch = ClusterWatch(tmp_path, said.append)
    file = tmp_path / "17-4.jsonl"
    line = json.dumps(EVENT)
    file.write_text('{"event": "start", "wall_ns": 1}\n' + line[:20])
    watch.look(0.0)
    assert said == []
    with file.open("a") as stream:
        stream.write(line[20:] + "\n")
    watch.look(LOOK_S / 2)
    assert said == []
    for turn in range(1, 4):
        watch.look(turn * 2 * LOOK_S)
    assert len(said) == 1
    assert "Ray cluster at 10.0.0.1:6379" in said[0]
    assert "ddpdoctor attach" in said[0]


def make_evidence(*processes: ProcessRecord) -> Evidence:
    return Evidence(launch=Launch(command="run"), processes=processes, job=(JobEnd(exit_code=0),))


def test_such_a_job_is_never_called_healthy() -> None:
    driver = ProcessRecord(pid=1, role="other", cluster="Ray cluster at 10.0.0.1:6379", exit_code=0)
    unseen = describe_unseen(make_evidence(driver))
    assert unseen is not None
    assert unseen.startswith("saw no rank: the workers ran in the Ray cluster at 10.0.0.1:6379")
    rank = ProcessRecord(pid=2, rank=0, world_size=1, exit_code=0)
    assert describe_unseen(make_evidence(driver, rank)) is None
