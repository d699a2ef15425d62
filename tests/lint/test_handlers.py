"""Handlers that leave before a collective: errors that one rank meets alone, and those that come to all of them."""

from __future__ import annotations

import pytest

from tests.lint.judging import assert_found, lint

PROGRAM = """\
import argparse, importlib, json, resource, shutil, signal
def check(args):
    if args.steps < 1:
        raise RuntimeError("no steps")
def fetch(path):
    return torch.load(path)
def main(args, rank, paths, batches):
    dist.init_process_group("gloo")
    bad = torch.zeros(1)
    dist.all_reduce(bad)
    try:
        {tried}
    except {error}:
        print("no")
        {way}
    dist.barrier()  # here
"""
ALIKE = [
    "import apex",
    "apex = importlib.import_module('apex')",
    "backend = os.environ['BACKEND']",
    "steps = int(os.getenv('STEPS', '3'))",
    "mp.set_start_method('spawn')",
    "assert torch.cuda.is_available()",
    "net = getattr(torch.nn, args.arch)",
    "version = tuple(map(int, torch.__version__.split('.')[:2]))",
    "torch.backends.cuda.enable_flash_sdp(True)",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))",
    "signal.signal(signal.SIGTERM, stop)",
    "settings = json.loads(args.settings)",
    "net = torch.compile(torch.nn.Linear(args.width, 2))",
    "check(args)",
    "raise RuntimeError('not supported')",
    "if not args.train:\n            raise RuntimeError('nothing to do')",
    "if bad.item() > 0:\n            raise RuntimeError('stop on all')",
]
ALONE = [
    "data = open('x').read()",
    "data = torch.load('x.pt')",
    "data = fetch('x.pt')",
    "batch = next(batches)",
    "path = paths[dist.get_rank()]",
    "os.makedirs('out')",
    "if rank == 1:\n            raise RuntimeError('only here')",
    "assert dist.get_rank() == 0",
]


@pytest.mark.right
@pytest.mark.parametrize("tried", ALIKE)
@pytest.mark.parametrize("error", ["Exception", "(RuntimeError, OSError)", "BaseException"])
def test_errors_that_come_to_all_ranks_keep_them_together(tried: str, error: str) -> None:
    assert lint(PROGRAM.format(tried=tried, error=error, way="return")) == []


@pytest.mark.wrong
@pytest.mark.parametrize("tried", ALONE)
@pytest.mark.parametrize("error", ["Exception", "(RuntimeError, OSError)"])
def test_errors_that_one_rank_meets_alone_part_it_from_the_others(tried: str, error: str) -> None:
    assert_found(PROGRAM.format(tried=tried, error=error, way="return"), "COL002", "warning")


@pytest.mark.wrong
@pytest.mark.parametrize("error", ["torch.cuda.OutOfMemoryError", "MemoryError", "ZeroDivisionError"])
def test_errors_of_memory_and_numbers_are_of_one_rank_whatever_is_tried(error: str) -> None:
    assert_found(PROGRAM.format(tried="check(args)", error=error, way="return"), "COL002", "warning")
