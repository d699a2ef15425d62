"""Made-up evidence of training: what ranks held before each step, which gradients they used, what they were given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import ddpdoctor_checks
from ddpdoctor.evidence import Evidence, Frame, Launch, RankSet
from ddpdoctor.evidence.layout import Layout
from ddpdoctor.evidence.training.fingerprints import (
    BatchLook,
    Born,
    EpochLook,
    LoaderSetup,
    OptimizerSetup,
    StateLook,
    StepLook,
    TensorLook,
    Training,
    WrapperLook,
    WrapperSetup,
)
from ddpdoctor.evidence.training.seedings import Seeding
from ddpdoctor.evidence.training.shares import Share
from ddpdoctor.judge import Finding, Registry
from ddpdoctor.report.build import build_report
from ddpdoctor.testing import STARTED

STEP = Frame("train.py", 30, "train", "optimizer.step()")
SEED = Frame("train.py", 9, "main", "torch.manual_seed(seed)")
WRAP = Frame("train.py", 12, "main", "model = DistributedDataParallel(net)")
CALL = Frame("train.py", 28, "train", "loss = model.module(x).mean()")
LOOP = Frame("train.py", 25, "train", "for batch in loader:")
TORCH = Frame("/usr/lib/python3/site-packages/torch/optim/optimizer.py", 500, "wrapper")


def shares(text: str, norms: Sequence[float] = ()) -> tuple[Share, ...]:
    """Return ``"0-2|3"`` as two shares."""
    parts = text.split("|") if text else []
    return tuple(
        Share(f"d{place}", RankSet.parse(part), norms[place] if place < len(norms) else None)
        for place, part in enumerate(parts)
    )


def tensor(
    name: str, world: int, values: str = "", gradients: str = "", *, model: int = 1, missing: str = "",
    reduced: bool = True, ignored: bool = False, idle: str = "", norms: Sequence[float] = (1.0, 2.0, 3.0, 4.0),
    kind: str = "parameter",
) -> TensorLook:  # fmt: skip
    """Return a tensor; ranks agree in what is not given."""
    everyone = RankSet.span(world)
    return TensorLook(
        name=name,
        model=model,
        kind=kind,
        shape=(4, 4),
        trainable=everyone,
        values=shares(values or f"0-{world - 1}", norms),
        gradients=shares(gradients or f"0-{world - 1}", norms),
        missing=RankSet.parse(missing),
        reduced=everyone if reduced and not ignored else RankSet(),
        ignored=everyone if ignored else RankSet(),
        idle=RankSet.parse(idle),
    )


class Made:
    """A job in the making: ``Made(2).look(1).look(2, values="0|1")``."""

    def __init__(
        self, world: int, *, wrapped: bool = True, group: str = "", hooks: tuple[str, ...] = ()
    ) -> None:
        self.world = world
        self.everyone = f"0-{world - 1}"
        self.looks: list[StepLook] = []
        self.batches: list[BatchLook] = []
        self.epochs: list[EpochLook] = []
        self.loaders: list[LoaderSetup] = []
        self.find_unused = False
        self.uniform = True
        self.ended = self.everyone
        """Who made the same number of steps."""
        self.unfrozen: tuple[str, ...] = ()
        self.model = 1 if wrapped else -1
        self.groups = [group or self.everyone]
        self.hooks = hooks
        self.models = {str(self.model): "__main__.Net"}
        self.layout = Layout()
        self.peers: tuple[RankSet, ...] = ()
        self.born: tuple[Born, ...] = ()
        self.rounds: tuple[Frame, ...] = ()
        self.reduced: tuple[Frame, ...] = ()
        self.replaced: tuple[Frame, ...] = ()
        self.all_to_all = False
        self.averagings = 0
        """Times that the program reduced as much as the parameters, in the line before `STEP`."""
        self.seedings: list[Seeding] = []
        self.lowered = ""
        """Ranks whose learning rates a scheduler lowered after the same steps: ``"0|1"``."""

    def look(
        self, step: int, values: str = "", gradients: str = "", *tensors: TensorLook, synced: int = 1, alone: int = 0,
        last: bool | None = True, bypassed: bool = False, final: bool = False, rates: str = "", rated: str = "", carried: float = 0.0, exchanged: float = 0.0,
        states: tuple[StateLook, ...] = (), who: str = "", joined: bool = False,
    ) -> Made:  # fmt: skip
        """Add a look; without tensors and with ``values`` or ``gradients`` given one tensor is made for them.

        ``who`` are the ranks that looked, where it was not all of them.
        """
        if not tensors and (values or gradients):
            tensors = (
                tensor("fc.weight", self.world, values, gradients, model=self.model, reduced=self.model > 0),
            )
        way = WrapperLook(
            number=1,
            ranks=RankSet.span(self.world),
            synced=synced,
            alone=alone,
            last_synced=last,
            bypassed="Net" if bypassed else None,
            bypass=(TORCH, CALL) if bypassed else (),
        )
        self.looks.append(
            StepLook(
                optimizer=1,
                step=step,
                final=final,
                values=shares(values or who or self.everyone),
                gradients=() if final else shares(gradients or who or self.everyone),
                joined=joined,
                rates=shares(rates or self.everyone),
                rated=shares(rated or self.everyone),
                wrappers=(way,) if self.model > 0 else (),
                tensors=tensors,
                differing=len(tensors),
                carried=carried,
                exchanged=exchanged,
                states=states,
            )
        )
        return self

    def batch(
        self, index: int, who: str, *, loader: str = "train.py:25", epoch: int = 1, salt: str = ""
    ) -> Made:
        """Add a batch, e.g. ``"0-1"`` for one that is equal on both ranks."""
        rows = tuple(Share(f"{salt or index}-{n}", RankSet.parse(p)) for n, p in enumerate(who.split("|")))
        self.batches.append(
            BatchLook(self.model, loader, epoch, index, rows, (8, 3), (CALL,) if index == 1 else ())
        )
        return self

    def epoch(self, number: int, digests: Mapping[int, str], *, compared: int = 64, ascending: bool = False,
              steps: int = 8, batches: int = 8) -> Made:  # fmt: skip
        """Add an epoch: rank -> digest of its order."""
        self.epochs += [
            EpochLook(
                "train.py:25",
                number,
                RankSet([rank]),
                digest,
                compared,
                batches,
                64,
                (5, 3, 9, 1),
                ascending,
                steps,
            )
            for rank, digest in digests.items()
        ]
        return self

    def seed(self, values: str, *, line: int = SEED.line, trained: bool = False) -> Made:
        """Add a line that seeded torch, e.g. ``"0|1"`` for ranks with seeds of their own."""
        frames = TORCH, dataclasses.replace(SEED, line=line)
        self.seedings.append(Seeding(shares(values), trained, frames))
        return self

    def loader(self, *, sets_epoch: bool = True, shuffle: bool | None = True, epochs: tuple[int, ...] = (0, 0),
               sampler: str = "torch.utils.data.distributed.DistributedSampler", shuffles: bool = True) -> Made:  # fmt: skip
        """Add the loader of batches and epochs."""
        everyone = RankSet.span(self.world)
        self.loaders.append(
            LoaderSetup(
                "train.py:25",
                everyone,
                (LOOP,),
                8,
                8,
                sampler,
                sets_epoch,
                shuffle,
                epochs,
                self.world,
                shuffles,
            )
        )
        return self

    def training(self) -> Training:
        """Return it as one node's."""
        wrappers = tuple(
            WrapperSetup(
                1, "__main__.Net", RankSet.parse(group), self.find_unused, False, self.hooks, (TORCH, WRAP)
            )
            for group in self.groups
        )
        setup = OptimizerSetup(
            number=1,
            kind="torch.optim.sgd.SGD",
            ranks=RankSet.span(self.world),
            parameters=4,
            frames=(TORCH, STEP),
            models=self.models,
            wrappers=wrappers if self.model > 0 else (),
            uniform=self.uniform,
            steps=shares(self.ended),
            unfrozen=self.unfrozen,
            peers=self.peers,
            born=self.born,
            rounds=self.rounds,
            reduced=self.reduced,
            replaced=self.replaced,
            all_to_all=self.all_to_all,
            averagings=self.averagings,
            averaging=(TORCH, dataclasses.replace(STEP, line=29)) if self.averagings else (),
            lowered=shares(self.lowered) if self.lowered else (),
            lowered_at=(TORCH, Frame("train.py", 61, "fit", "scheduler.step(loss)")) if self.lowered else (),
        )
        return Training(
            ranks=RankSet.span(self.world),
            optimizers=(setup,) if self.looks else (),
            steps=tuple(self.looks),
            batches=tuple(self.batches),
            epochs=tuple(self.epochs),
            loaders=tuple(self.loaders),
            layout=self.layout,
            seedings=tuple(self.seedings),
        )

    def evidence(self) -> Evidence:
        """Return it as the evidence of a run."""
        return Evidence(
            launch=Launch(command="run", nproc=self.world, world_size=self.world), training=(self.training(),)
        )


def judge(made: Made | Evidence) -> list[Finding]:
    """Return what all checks together find in a run; none of them may fail."""
    registry = Registry()
    ddpdoctor_checks.register(registry)
    evidence = made if isinstance(made, Evidence) else made.evidence()
    evidence = dataclasses.replace(evidence, launch=Launch(command="run", world_size=2))
    report = build_report(evidence, registry=registry, started_at=STARTED, duration_s=1.0)
    assert [row.reason for row in report.checks if row.status == "error"] == []
    return list(report.findings)


def only(made: Made | Evidence) -> Finding:
    """Return the one finding."""
    found = judge(made)
    assert len(found) == 1, [each.code for each in found]
    return found[0]
