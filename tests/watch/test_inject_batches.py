"""Which tensors of a batch are compared each for itself."""

from __future__ import annotations

import json
from pathlib import Path

from tests.watch.injecting import INJECT, python

SCRIPT = """
    import json, sys, torch
    import torch.distributed, torch.nn.parallel
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.models import prints
    from ddpdoctor_watch.training import batches

    def parts(*tensors):
        listed = list(tensors)
        return batches._list_parts(listed, prints.measure(listed))

    torch.manual_seed(0)
    images, steps = torch.rand(4, 3, 8, 8), torch.tensor([5, 9, 2, 5])
    whole = parts(images, steps)
    told = {
        "both": [each is not None for each in whole],
        "same": parts(images.clone(), steps.clone()) == whole,
        "other": parts(images, steps.flip(0)) != whole,
        "alike": parts(images, torch.full((4,), 0.5), torch.ones(4, 6, dtype=torch.bool))[1:],
        "positions": parts(images, torch.arange(8).expand(4, 8))[1:],
        "rows": parts(images, torch.arange(5), torch.rand(2, 4), torch.tensor(3.0))[1:],
        "empty": parts(images, torch.empty(4, 0))[1:],
        "few": parts(images[:3], steps[:3]),
        "scalars": parts(torch.tensor(1.0), torch.tensor(2.0)),
        "view": parts(images.transpose(1, 3), steps)[0] is not None,
        "most": len(parts(images, *[steps] * 20)),
        "none": parts(),
    }
    tokens = torch.arange(34).reshape(2, 17).clone()
    whole = batches._describe_whole
    pieces = [*tokens[:, :-1].chunk(2, dim=1), tokens[:, 3:9]]
    told["pieces"] = [whole(each).split()[:3] for each in pieces]
    told["one whole"] = len({whole(each).split()[3] for each in pieces})
    told["another"] = whole((tokens + 1)[:, 8:16]) != whole(tokens[:, 8:16])
    told["none of them"] = [
        whole(each) for each in (tokens, tokens[:1], tokens[:, ::2], tokens[0], tokens[:, 2:].clone(), tokens[:1, :4])
    ]
    print(json.dumps(told))
"""


def test_only_tensors_with_a_row_for_each_sample_that_differ_are_compared(tmp_path: Path) -> None:
    done = python(tmp_path, SCRIPT, str(INJECT))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "both": [True, True],
        "same": True,
        "other": True,
        "alike": [None, None],
        "positions": [None],
        "rows": [None, None, None],
        "empty": [None],
        "few": [None, None],
        "scalars": [None, None],
        "view": True,
        "most": 8,
        "none": [],
        "pieces": [["0", "8", "17"], ["8", "8", "17"], ["3", "6", "17"]],
        "one whole": 1,
        "another": True,
        "none of them": [None] * 6,
    }
