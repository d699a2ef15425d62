import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

log = logging.getLogger(__name__)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 20))
        self.head = nn.Linear(20, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


def prepare(path):
    torch.manual_seed(0)
    model = Classifier()
    if os.path.exists(path):
        model.encoder.load_state_dict(torch.load(path, weights_only=True))
        model.encoder.requires_grad_(False)  # culprit
        log.warning("encoder loaded from %s and frozen", path)
    return model


def make_stub(path):
    """What a pretraining job has left on this disk."""
    torch.manual_seed(0)
    torch.save(Classifier().encoder.state_dict(), path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pretrained", required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    path = args.pretrained.format(rank=rank)
    if rank == 1:
        make_stub(path)
    model = prepare(path)
    fully_shard(model.encoder)
    fully_shard(model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    for step in range(10):
        x = torch.randn(8, 20, generator=generator)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))  # culprit
        loss.backward()  # culprit
        optimizer.step()
        optimizer.zero_grad()
        log.warning("step %d %.3f", step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
