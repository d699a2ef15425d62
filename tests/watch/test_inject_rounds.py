"""Which steps are looked at after collectives of the program's own, and which samplers are taken to shuffle."""

from __future__ import annotations

from pathlib import Path

from tests.watch.injecting import python
from tests.watch.test_inject_loaders import START

ROUNDS = """
    import ddpdoctor_watch.calls.ring as calls
    from ddpdoctor_watch.training.rounds import Rounds
    seen = [0, 0, 0]
    summed = [0]
    calls.take_counts = lambda: (*seen[:2], *summed, 5)
    calls.list_frames = {5: [["train.py", 7, "average"]]}.get
    calls.count_elements = lambda: tuple(seen[1:])
    rounds = Rounds([torch.zeros(10, 10)])
    told = []
    for step in range(1, 41):
        seen[0] += 1
        seen[1] += 1
        if step % 10 == 0:
            seen[0] += 1
            seen[1] += 100
        if rounds.is_telling():
            told.append(step)
    assert not rounds.is_telling()
    assert told == [1, 2, 4, 8, 10, 17, 20, 35, 40], told
    assert rounds.tell() == (4.4, 0.0)
    assert rounds.tell() == (0.0, 0.0)
    for more, averagings in ((3, 0), (102, 1), (200, 2), (150, 2), (400, 2), (0, 2)):
        seen[0] += 1
        summed[0] += more
        rounds.is_telling()
        assert rounds.averagings == averagings, more
    assert rounds.place == [["train.py", 7, "average"]]
    members = {1: (0, 1), 2: (0, 1), 3: (0,)}
    calls.list_members = members.__getitem__
    for carried, covers in (({1: 95}, True), ({1: 60, 2: 35}, True), ({1: 60, 2: 20}, False), ({1: 60, 3: 40}, False)):
        calls.list_carried = lambda: list(carried.items())
        assert rounds.covers_all() is covers, carried
    print("told")
"""

SAMPLERS = """
    import random
    from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler
    from torch.utils.data.distributed import DistributedSampler

    class ByLength(DistributedSampler):
        def __iter__(self):
            return iter(sorted(range(self.num_samples)))

    class Further(DistributedSampler):
        def __iter__(self):
            return iter(list(super().__iter__()))

    class Helped(Sampler):
        def __iter__(self):
            return iter(self.order())

        def order(self):
            return random.sample(range(9), 9)

    class Begun(Sampler):
        def __init__(self):
            self.rows = torch.randperm(9).tolist()

        def __iter__(self):
            return iter(self.rows)

    from ddpdoctor_watch.training.loaders import _shuffles
    kinds = (ByLength, SequentialSampler, BatchSampler), (Further, Helped, Begun, DistributedSampler, RandomSampler)
    assert [[_shuffles(kind) for kind in row] for row in kinds] == [[False] * 3, [True] * 5]
    print("told")
"""


def test_rounds_of_one_weight_are_counted_for_themselves(tmp_path: Path) -> None:
    assert "told" in python(tmp_path, START + ROUNDS).stdout


def test_samplers_that_shuffle_are_known_by_their_code(tmp_path: Path) -> None:
    assert "told" in python(tmp_path, START + SAMPLERS).stdout
