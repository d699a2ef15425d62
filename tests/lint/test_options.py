"""What a run has in its settings without options: assigned by the program, or a parser's default."""

from __future__ import annotations

import pytest

from tests.lint.judging import lint

PROGRAM = """
def start(args):
    {assigned}
    dist.init_process_group(backend=args.dist_backend)
    {before}dist.barrier(){mark}
def main(args):
    start(args)
    model = build(args)
    dist.destroy_process_group()
def parse():
    parser = argparse.ArgumentParser()
    {option}
    return parser.parse_args()
if __name__ == "__main__":
    main(parse())
"""


@pytest.mark.parametrize(
    ("assigned", "option", "found"),
    [
        ("args.dist_backend = 'nccl'", "pass", True),
        ("pass", "parser.add_argument('--dist-backend', default='nccl')", True),
        ("pass", "parser.add_argument('--b', dest='dist_backend', default='nccl')", True),
        ("args.dist_backend = 'nccl'", "parser.add_argument('--dist_backend', default='gloo')", True),
        ("args.dist_backend = 'gloo'", "parser.add_argument('--dist_backend', default='nccl')", False),
        ("args.dist_backend = pick()", "parser.add_argument('--dist_backend', default='nccl')", False),
        ("pass", "parser.add_argument('--dist_backend')", False),
        ("pass", "parser.add_argument('--backend', default='nccl')", False),
        ("args.dist_backend = 'nccl' if args.fast else 'gloo'", "pass", False),
    ],
)
def test_backend_of_the_settings(assigned: str, option: str, *, found: bool) -> None:
    text = PROGRAM.format(assigned=assigned, option=option, before="", mark="")
    assert ("BKD009" in {each.code for each in lint(text)}) is found
    right = PROGRAM.format(
        assigned=assigned, option=option, before="torch.cuda.set_device(args.gpu); ", mark=""
    )
    assert "BKD009" not in {each.code for each in lint(right)}


DATACLASS = """
from dataclasses import dataclass
@dataclass
class Config:
    backend: str = "{backend}"
def main(cfg: Config):
    dist.init_process_group(cfg.backend)
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    main(Config())
"""


@pytest.mark.parametrize(("backend", "found"), [("nccl", True), ("gloo", False)])
def test_field_of_a_dataclass(backend: str, *, found: bool) -> None:
    assert ("BKD009" in {each.code for each in lint(DATACLASS.format(backend=backend))}) is found
