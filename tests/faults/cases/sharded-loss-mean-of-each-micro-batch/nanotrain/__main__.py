import torch
import torch.distributed as dist

from nanotrain.data import micro_batches
from nanotrain.model import build_model
from nanotrain.trainer import Trainer


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = build_model(vocabulary=28, dim=20)
    trainer = Trainer(model, accumulate=4, lr=3e-3)
    updates = trainer.train(micro_batches(seed=dist.get_rank(), count=40))
    if dist.get_rank() == 0:
        print(f"{updates} updates, loss {trainer.loss:.3f}")
    dist.destroy_process_group()


main()
