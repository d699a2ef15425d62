"""Functions that only build layers, into which a trace does not go, and those that do more."""

from __future__ import annotations

import textwrap

import pytest

from ddpdoctor.source.files.reading import parse_script
from ddpdoctor.source.resolve.building import only_builds
from ddpdoctor.source.resolve.names import Files
from tests.lint.judging import HEAD, lint

BLOCK = """
import torch.nn.functional as F
class Block(torch.nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(3)], norm(width))
        {more}
        for each in self.modules():
            if isinstance(each, torch.nn.Linear):
                torch.nn.init.zeros_(each.weight)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(8, torch.nn.LayerNorm) for _ in range(12))
def build():
    return Net()
"""


@pytest.mark.parametrize(
    ("more", "builds"),
    [
        ("self.scale = torch.nn.Parameter(torch.ones(width))", True),
        ("self.register_buffer('table', torch.arange(width))", True),
        ("print(width)", False),
        ("os.environ['MASTER_PORT'] = '29500'", False),
        ("self.load_state_dict(torch.load('a.pt'))", False),
        ("dist.barrier()", False),
        ("self.layers = torch.nn.SyncBatchNorm.convert_sync_batchnorm(self.layers)", False),
        ("self.layers.cuda()", False),
        ("helper.make(self)", False),
        ("build()", True),
    ],
)
def test_functions_that_only_build_layers(more: str, builds: bool) -> None:
    files = Files([parse_script((HEAD + BLOCK.format(more=more)).encode(), "train.py")])
    module = files.modules[0]
    assert only_builds(module.functions["build"], files) == builds
    assert [only_builds(each.functions["__init__"], files) for each in module.classes.values()] == [
        builds
    ] * 2


def test_what_comes_behind_a_large_network_is_read() -> None:
    """Each block makes three others: all of them together are far more than a trace holds."""
    tree = """
    class Tree(torch.nn.Module):
        def __init__(self, depth):
            super().__init__()
            self.parts = torch.nn.ModuleList([{parts}])
    """
    levels = [
        textwrap.dedent(tree)
        .replace("Tree", f"Tree{level}")
        .format(parts=", ".join([f"Tree{level + 1}(depth)"] * 9) if level < 4 else "torch.nn.Linear(2, 2)")
        for level in range(5)
    ]
    source = "".join(levels) + textwrap.dedent("""
    def main():
        dist.init_process_group("gloo")
        model = DDP(Tree0(1))
        torch.save(model.state_dict(), "model.pt")
        dist.destroy_process_group()
    main()
    """)
    assert "CKP001" in [each.code for each in lint(source)]
