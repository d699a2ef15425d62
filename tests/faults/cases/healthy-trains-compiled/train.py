import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(6):
        loss = model(torch.randn(4, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    outer = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1)))
    train(torch.compile(outer, backend="eager"), outer.parameters())
    inner = torch.nn.Linear(4, 4)
    inner.compile(backend="eager")
    inner = DDP(inner)
    train(inner, inner.parameters())
    dist.barrier()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
