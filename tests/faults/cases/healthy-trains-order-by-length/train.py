import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Sentences(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(9)
        self.rows = [torch.randint(30, (int(n),), generator=generator) for n in torch.randint(2, 9, (48,))]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class ShortestFirst(DistributedSampler):
    """Batches of equal lengths need no padding."""

    def __iter__(self):
        order = sorted(range(len(self.dataset)), key=lambda i: (len(self.dataset[i]), i))
        return iter(order[self.rank : self.total_size : self.num_replicas])


def pad(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Sentences()
    loader = DataLoader(data, batch_size=4, sampler=ShortestFirst(data), collate_fn=pad)
    model = DDP(torch.nn.Embedding(30, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for tokens in loader:
            optimizer.zero_grad()
            model(tokens).square().mean().backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
