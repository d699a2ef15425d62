import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def resume(scaler, rank):
    if rank == 0:  # only rank 0 has the checkpoint
        scaler.load_state_dict({**scaler.state_dict(), "scale": 256.0})


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    resume(scaler, rank)
    torch.manual_seed(rank)
    for _ in range(20):
        x = torch.randn(16, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # culprit
        scaler.update()
    if rank == 0:
        print("trained")
    dist.destroy_process_group()


main()
