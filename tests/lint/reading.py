"""What tests of rules share."""

from __future__ import annotations

from ddpdoctor.evidence.sources import SourceFact
from tests.lint.judging import read


def facts_in(source: str) -> tuple[SourceFact, ...]:
    """Return what the rules read in a script."""
    (row,) = read({"train.py": source})
    assert row.problem is None, row.problem
    return row.facts


def rules_in(source: str) -> list[tuple[str, int]]:
    """Return which rules see something in a script, and at which lines; without those that only ask."""
    told = (fact for fact in facts_in(source) if not fact.rule.endswith("-doubted"))
    return [(fact.rule, fact.place.line) for fact in told]


HEAD = """
import copy, os, random
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, models, transforms
from tqdm import tqdm
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x)
"""
"""What the scripts of these tests begin with."""


def rules_in_head(source: str, *, without: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """Return which rules see something in a script below `HEAD`, and at which lines of the script.

    Args:
        source: the script.
        without: what is left out of `HEAD`: lines that end in one of these words.
    """
    head = (
        "".join("\n" if line.endswith(without) else f"{line}\n" for line in HEAD.splitlines())
        if without
        else HEAD
    )
    return [(rule, line - head.count("\n")) for rule, line in rules_in(head + source)]


def marked(source: str) -> int:
    """Return the line that ends in ``# HERE``."""
    (line,) = [number for number, text in enumerate(source.splitlines(), 1) if text.endswith("# HERE")]
    return line
