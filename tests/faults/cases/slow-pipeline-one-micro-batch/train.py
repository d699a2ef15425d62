import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

WIDTH = 256


def make_layers(count):
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=1)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    torch.manual_seed(rank)
    layers = make_layers(6)
    stage = PipelineStage(layers, rank, last + 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, args.micro_batches, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01)
    source = torch.Generator().manual_seed(7)
    losses = []
    for _ in range(40):
        batch = torch.randn(512, WIDTH, generator=source)
        if rank == 0:
            schedule.step(batch)
        elif rank == last:
            schedule.step(target=batch, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    if rank == last:
        print(f"loss {losses[-1].item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
