"""Lines that seed torch are seen, once each, and what they give its generators stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddpdoctor.evidence import RankSet
from ddpdoctor.watch.readers.records import Shortener
from ddpdoctor.watch.readers.seedings import fold_seeds
from tests.watch.injecting import INJECT, python

SCRIPT = """
    import json, sys, torch
    from torch.utils.data import DataLoader
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.core import journal, progress

    events = []
    journal.write = lambda event, fields: (events.append(fields) if event == "seed" else None) or 0
    torch.manual_seed(7)
    drawn = torch.rand(3).tolist()

    def seed_all(value):
        return torch.manual_seed(value)

    first = seed_all(7) is torch.default_generator
    same = torch.rand(3).tolist() == drawn
    for value in range(40):
        seed_all(value)
    progress.backwards = 3
    torch.random.manual_seed(-5)
    torch.seed()
    for _ in DataLoader(range(4), num_workers=1):
        pass
    for place in range(40):
        exec(compile(f"torch.manual_seed({place})", "made.py", "exec"))
    functions = [each["frames"][0][2] for each in events]
    print(json.dumps([first and same, [[each["value"], each["trained"]] for each in events], functions]))
"""


def test_each_line_that_seeds_is_written_down_once(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT, str(INJECT))
    assert done.returncode == 0, done.stderr
    same, told, functions = json.loads(done.stdout)
    assert same is True
    assert told[:4] == [["7", False], ["7", False], ["0", False], ["-5", True]]
    assert len(told) == 12  # of 45 lines
    assert functions[:5] == ["<module>", "seed_all", "seed_all", "<module>", "<module>"]


def test_lines_that_seed_are_joined_over_ranks(tmp_path: Path) -> None:
    def seed(value: int, line: int, **more: Any) -> Any:
        return {
            "event": "seed",
            "value": str(value),
            "trained": False,
            "frames": [["/a/train.py", line, "main"]],
            **more,
        }

    ranks = {0: [seed(1, 5), seed(9, 8), seed(9, 8)], 1: [seed(2, 5), seed(9, 8, trained=True)]}
    first, second = fold_seeds(ranks, Shortener(tmp_path))
    assert [(each.digest, each.ranks) for each in first.values] == [("1", RankSet([0])), ("2", RankSet([1]))]
    assert ([each.digest for each in second.values], first.trained, second.trained) == (["9"], False, True)
    assert first.frames[0].line == 5
