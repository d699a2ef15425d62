"""What a LightningModule logs for a whole evaluation: averaged across ranks only with ``sync_dist``."""

from __future__ import annotations

import pytest

from tests.lint import judging

HEAD = "import torch\nimport torch.nn.functional as F\n"
MODULE = """\
{imports}
class Net({base}):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.metric = torchmetrics.Accuracy()
    def forward(self, x):
        return self.layer(x)
    def shared(self, batch):
        x, y = batch
        return F.cross_entropy(self(x), y), y
    def training_step(self, batch, number):
        loss, _ = self.shared(batch)
        self.log("train_loss", loss)
        return loss
    def {step}(self, batch, number):
        {body}
trainer = {trainer}
trainer.fit(Net(), loader)
"""
BODY = 'loss, y = self.shared(batch)\n        self.log("val_loss", loss)'
PARTS = {"imports": "import lightning as L, torchmetrics", "base": "L.LightningModule", "step": "validation_step",
         "body": BODY, "trainer": 'L.Trainer(accelerator="gpu", devices=4)'}  # fmt: skip


def read(**parts: str) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return the findings with their severity, and the codes of the questions."""
    sources = judging.read({"train.py": HEAD + MODULE.format(**PARTS | parts)})
    found, asked = judging.judge(sources), judging.judge(sources, questions=True)
    return [(each.code, each.severity) for each in found], [each.code for each in asked]


@pytest.mark.wrong
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"step": "test_step"},
        {"imports": "import torchmetrics\nimport pytorch_lightning as pl", "base": "pl.LightningModule",
         "trainer": 'pl.Trainer(gpus=[0, 1])'},
        {"imports": "import torchmetrics\nfrom lightning.pytorch import LightningModule, Trainer",
         "base": "LightningModule", "trainer": 'Trainer(strategy="ddp_find_unused_parameters_true")'},
        {"trainer": "L.Trainer(num_nodes=2)"},
        {"body": 'x, y = batch\n        val_loss = F.cross_entropy(self(x), y)\n        self.log("val", val_loss)'},
        {"body": 'x, y = batch\n        self.log("val", F.cross_entropy(self(x), y), prog_bar=True)'},
        {"body": 'loss, y = self.shared(batch)\n        self.log("val_loss", loss, sync_dist=False)'},
        {"body": 'loss, y = self.shared(batch)\n        self.log("seen", y, sync_dist=True)\n        self.log("val", loss)'},
    ],
)  # fmt: skip
def test_value_of_a_rank_is_logged_for_all(parts: dict[str, str]) -> None:
    assert read(**parts) == ([("NUM005", "warning")], [])


@pytest.mark.wrong
@pytest.mark.parametrize(
    "trainer", ["L.Trainer()", "L.Trainer(devices=1)", "L.Trainer(devices=args.gpus)", "make()"]
)
def test_it_is_asked_where_the_number_of_devices_is_not_known(trainer: str) -> None:
    assert read(trainer=trainer) == ([], ["NUM005"])


@pytest.mark.right
@pytest.mark.parametrize(
    "parts",
    [
        {"body": 'loss, y = self.shared(batch)\n        self.log("val_loss", loss, sync_dist=True)'},
        {"body": 'loss, y = self.shared(batch)\n        self.log("val_loss", loss, sync_dist=self.several)'},
        {"body": 'loss, y = self.shared(batch)\n        self.log("val_loss", loss, rank_zero_only=True)'},
        {"body": 'loss, y = self.shared(batch)\n        self.log("val_loss", loss, **self.options)'},
        {"body": 'loss, y = self.shared(batch)\n        self.log("val_loss", self.all_gather(loss).mean())'},
        {
            "body": 'loss, y = self.shared(batch)\n        loss = self.all_gather(loss)\n        self.log("val_loss", loss)'
        },
        {"body": 'x, y = batch\n        self.metric(self(x), y)\n        self.log("val_acc", self.metric)'},
        {"body": 'x, y = batch\n        self.log("val_acc", self.metric.compute())'},
        {"step": "validation"},
        {"base": "torch.nn.Module"},
    ],
)
def test_value_that_is_synchronized_or_not_of_an_evaluation(parts: dict[str, str]) -> None:
    assert read(**parts) == ([], [])
