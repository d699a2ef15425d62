import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def pretrained():
    return {"weight": torch.full((2, 4), 0.1), "bias": torch.zeros(2)}


def main():
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 2))
    if dist.get_rank() == 0:
        model.module.load_state_dict(pretrained())  # culprit
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(9):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 4)), torch.randint(2, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
