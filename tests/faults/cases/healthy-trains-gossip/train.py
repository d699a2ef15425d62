import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def mix(model, step):
    rank, world = dist.get_rank(), dist.get_world_size()
    shift = 1 if (rank + step) % 2 == 0 else -1
    peer = (rank + shift) % world
    with torch.no_grad():
        mine = torch.nn.utils.parameters_to_vector(model.parameters())
        theirs = torch.empty_like(mine)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]):
            work.wait()
        torch.nn.utils.vector_to_parameters((mine + theirs) / 2, model.parameters())


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    data = TensorDataset(torch.randn(128, 4), torch.randint(2, (128,)))
    sampler = DistributedSampler(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            mix(model, step)
            step += 1
    dist.barrier()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
