"""Programs in the style of well-known tutorials: silent as they are, and found wrong where one line is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ddpdoctor.evidence import Evidence
from ddpdoctor.evidence.facts import Launch
from ddpdoctor.judge import Finding
from ddpdoctor.judge.runner import run_checks
from ddpdoctor.source.gather import read_sources
from tests.lint.judging import REGISTRY, RULES

FOLDER = Path(__file__).resolve().parent / "tutorials"
PROGRAMS = sorted(each.name for each in FOLDER.iterdir() if each.suffix == ".py" or each.is_dir())


def judge(path: Path) -> list[Finding]:
    """Return the findings of a program that are more than a hint."""
    sources = read_sources([str(path)], RULES)
    assert not any(file.problem for file in sources)
    _, findings = run_checks(
        REGISTRY.checks_of("lint"),
        Evidence(launch=Launch("lint", nproc=0, world_size=0), sources=sources),
    )
    return [each for each in findings if each.severity != "info"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_tutorial_gives_no_alarm(name: str) -> None:
    assert judge(FOLDER / name) == []


STYLES = Path(__file__).resolve().parent / "styles"


@pytest.mark.right
@pytest.mark.parametrize("name", sorted(each.name for each in STYLES.iterdir() if each.name[0] != "_"))
def test_right_program_in_an_unusual_style_gives_no_alarm(name: str) -> None:
    """Each of them was once found wrong, and is not."""
    assert judge(STYLES / name) == []


CHANGES = [
    ("images.py", "            train_sampler.set_epoch(epoch)", "            pass", "DAT002"),
    ("images.py", "        train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)", "        train_sampler = None", "DAT001"),
    ("images.py", "        output = model(images)\n        loss = criterion(output, target)\n        losses", "        output = model.module(images)\n        loss = criterion(output, target)\n        losses", "DDP005"),
    ("images.py", "    device = torch.device(\"cuda\")\n", "    device = torch.device(\"cuda\")\n    model.module.fc = nn.Linear(512, args.classes)\n", "DDP006"),
    ("letters/trainer.py", "_, loss = self.model(source, targets)", "_, loss = self.model.module(source, targets)", "DDP005"),
    ("letters/trainer.py", "        dataloader.sampler.set_epoch(epoch)\n", "", "DAT002"),
    ("letters/trainer.py", ", sampler=DistributedSampler(dataset)", "", "DAT001"),
    ("letters/trainer.py", "        self.model = DDP(self.model, device_ids=[self.local_rank])\n", "        DDP(self.model)\n", "DDP015"),
    ("letters/main.py", ", generator=torch.Generator().manual_seed(1)", "", "DAT004"),
    ("adversarial.py", "            errG = crit(netD(fake), label)", "            fake = netG.module(fake.detach())\n            errG = crit(fake, label)", "DDP005"),
    ("adversarial.py", "        sampler.set_epoch(epoch)\n", "", "DAT002"),
    ("tokens.py", "            model.require_backward_grad_sync = (micro_step == gradient_accumulation_steps - 1)", "            pass", None),
    ("tokens.py", "            logits, loss = model(X, Y)\n            loss = loss /", "            logits, loss = raw_model(X, Y)\n            loss = loss /", "DDP005"),
    ("distillation.py", "z = self.student(x)", "z = self.student.module(x)", "DDP005"),
    ("distillation.py", "            self.sampler.set_epoch(epoch)\n", "", "DAT002"),
    ("finetuning.py", "        ts.set_epoch(epoch)\n", "", "DAT002"),
    ("finetuning.py", "    torch.manual_seed(0)\n", "    torch.manual_seed(rank)\n", "DAT004"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "code"), CHANGES)
def test_changed_tutorial_is_found_wrong(
    name: str, old: str, new: str, code: str | None, tmp_path: Path
) -> None:
    top = name.split("/")[0]
    if "/" in name:
        shutil.copytree(FOLDER / top, tmp_path / top)
    else:
        shutil.copy(FOLDER / top, tmp_path / top)
    text = (tmp_path / name).read_text()
    assert text.count(old) == 1
    (tmp_path / name).write_text(text.replace(old, new))
    found = judge(tmp_path / top)
    assert {each.code for each in found} == ({code} if code else set())
