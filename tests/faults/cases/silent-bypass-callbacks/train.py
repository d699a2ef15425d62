import torch
import torch.distributed as dist

from framework import Callback, Loop


class Task(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x

    def training_step(self, batch):
        return (self(batch) - 0.5).square().mean()


class Log(Callback):
    def after_step(self, loop, loss):
        if dist.get_rank() == 0 and loop.step % 5 == 0:
            print(f"step {loop.step}: {loss.item():.3f}")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    Loop(Task(), [Log()]).run(torch.randn(4, 4) for _ in range(11))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
