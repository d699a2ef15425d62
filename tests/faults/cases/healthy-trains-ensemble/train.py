import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data_seed = torch.Generator().manual_seed(5)
    x = torch.randn(40, 4, generator=data_seed)
    loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=5, shuffle=True)
    torch.manual_seed(1000 + rank)
    member = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(member.parameters(), lr=1e-2)
    for epoch in range(3):
        total = torch.zeros(1)
        for inputs, target in loader:
            loss = torch.nn.functional.mse_loss(member(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
    vote = member(x[:2]).detach()
    dist.all_reduce(vote)
    if rank == 0:
        print("done", total.item())
    dist.destroy_process_group()


main()
