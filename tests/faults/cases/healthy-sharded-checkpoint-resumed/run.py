import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard

FOLDER = "ckpt"


class App(Stateful):
    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 3))
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.1, total_iters=10)
        self.step = 0

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "schedule": self.schedule.state_dict(), "step": self.step}

    def load_state_dict(self, state):
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]

    def batch(self):
        generator = torch.Generator().manual_seed(1000 * self.step + dist.get_rank())
        x = torch.randn(8, 6, generator=generator)
        return x, x.view(8, 3, 2).sum(-1)

    def train(self, until):
        while self.step < until:
            x, y = self.batch()
            loss = nn.functional.mse_loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.step += 1
        return loss.item()


def main():
    dist.init_process_group("gloo")
    straight = App()
    wanted = straight.train(until=10)
    first = App()
    first.train(until=5)
    dcp.save({"app": first}, checkpoint_id=FOLDER)
    second = App()
    if os.path.exists(FOLDER):
        dcp.load({"app": second}, checkpoint_id=FOLDER)
        if dist.get_rank() == 0:
            print("resumed at step", second.step)
    assert abs(second.train(until=10) - wanted) < 1e-6
    dist.destroy_process_group()


main()
