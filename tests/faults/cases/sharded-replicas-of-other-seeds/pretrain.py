import torch
import torch.distributed as dist
from torch import nn

import mpu


class TensorParallelMLP(nn.Module):
    def __init__(self, hidden, tp_size):
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden // tp_size)
        self.down = nn.Linear(4 * hidden // tp_size, hidden, bias=False)

    def forward(self, x):
        return x + mpu.leave(self.down(torch.relu(self.up(mpu.enter(x)))))


def get_batch(iteration, hidden):
    generator = torch.Generator().manual_seed(10 * iteration + dist.get_rank(mpu.DP))
    x = torch.randn(6, hidden, generator=generator)
    return x, -x


def main():
    dist.init_process_group("gloo")
    mpu.initialize(tp_size=2)
    hidden = 12
    mpu.model_parallel_seed(1234)
    model = nn.Sequential(*[TensorParallelMLP(hidden, 2) for _ in range(2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for iteration in range(1, 13):
        x, y = get_batch(iteration, hidden)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=mpu.DP)
            p.grad /= dist.get_world_size(mpu.DP)
        optimizer.step()  # culprit
        if dist.get_rank() == 0:
            print(f" iteration {iteration} | loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
