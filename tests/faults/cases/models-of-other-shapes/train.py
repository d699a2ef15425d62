import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def read_vocabulary(rank):
    words = "the cat sat on the mat and the dog sat on the cat".split()
    return sorted(set(words if rank == 0 else words[:6]))


class Tagger(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.embedding = nn.Embedding(words, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.embedding(x))


def main():
    dist.init_process_group("gloo")
    vocabulary = read_vocabulary(dist.get_rank())
    model = DDP(Tagger(len(vocabulary)))  # culprit
    model(torch.zeros(2, dtype=torch.long)).sum().backward()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
