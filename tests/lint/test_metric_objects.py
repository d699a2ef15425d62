"""Metric objects of libraries that know one process, given the samples of one rank."""

from __future__ import annotations

import pytest

from tests.lint.judging import find_marked, lines_of, lint

PROGRAM = """\
import evaluate, datasets, torcheval.metrics
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification
def main(data):
    accelerator = Accelerator()
    model = AutoModelForSequenceClassification.from_pretrained("x")
    loader = DataLoader(data, batch_size=8{sampler})
    model, loader = {prepared}
    metric = {metric}
    for batch in loader:
        with torch.no_grad():
            output = model(**batch).logits.argmax(-1)
        {before}
        metric.{add}(output, batch["labels"])
    {end}
main(datasets.load_dataset("x"))
"""
PARTS = {
    "sampler": "",
    "prepared": "accelerator.prepare(model, loader)",
    "metric": 'evaluate.load("accuracy")',
    "before": "pass",
    "add": "add_batch",
    "end": "print(metric.compute())  # here",
}


def code(**parts: str) -> str:
    return PROGRAM.format(**PARTS | parts)


@pytest.mark.wrong
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"metric": 'evaluate.combine(["accuracy", "f1"])'},
        {"metric": 'datasets.load_metric("glue", "mrpc")'},
        {"metric": "torcheval.metrics.MulticlassAccuracy()", "add": "update"},
        {"end": "score = metric.compute()  # here\n    accelerator.print(score)"},
        {"sampler": ", sampler=DistributedSampler(data)", "prepared": "DDP(model), loader"},
    ],
)
def test_metric_of_one_rank_stands_for_all(parts: dict[str, str]) -> None:
    text = code(**parts)
    findings = [each for each in lint(text) if each.code == "NUM005"]
    assert [each.severity for each in findings] == ["warning"]
    assert lines_of(findings, "NUM005") == find_marked(text)


@pytest.mark.right
@pytest.mark.parametrize(
    "parts",
    [
        {"before": "output = accelerator.gather_for_metrics(output)"},
        {"before": "output = all_gather(output)"},
        {"metric": 'evaluate.load("accuracy", num_process=size, process_id=rank)'},
        {"metric": 'evaluate.load("accuracy", **options)'},
        {"metric": "Accuracy()"},
        {"end": "print(torcheval.metrics.toolkit.sync_and_compute(metric))"},
        {"prepared": "accelerator.prepare(model), loader"},
        {"prepared": "model, loader"},
        {"end": "pass"},
    ],
)
def test_metric_of_all_ranks_or_of_what_is_not_known(parts: dict[str, str]) -> None:
    assert "NUM005" not in {each.code for each in lint(code(**parts))}
