import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

BATCH, MICRO, IN, HIDDEN = 16, 4, 6, 20


def make_dataset():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(96, IN, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


def build(rank):
    if rank == 0:
        return nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh()), torch.zeros(BATCH // MICRO, IN)
    return nn.Linear(HIDDEN, 1), torch.zeros(BATCH // MICRO, HIDDEN)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module, example = build(rank)
    stage = PipelineStage(module, rank, world, torch.device("cpu"), input_args=(example,))
    schedule = ScheduleGPipe(stage, n_microbatches=MICRO, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
    loader = DataLoader(make_dataset(), batch_size=BATCH, shuffle=True, drop_last=True)  # culprit
    for epoch in range(2):
        for x, y in loader:  # culprit
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            else:
                losses = []
                schedule.step(target=y, losses=losses)
            optimizer.step()
        if rank == 1:
            print(f"epoch {epoch} loss {torch.stack(losses).mean().item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
