import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Language(nn.Module):
    def __init__(self, words=50, width=32):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        state = torch.zeros(tokens.size(0), self.cell.hidden_size)
        scores = []
        for column in self.words(tokens[:, :-1]).unbind(1):
            state = self.cell(column, state)
            scores.append(self.head(state))
        return torch.stack(scores, 1)


def block_of_rank(sentences):
    """Sentences of about one length in each block: little padding."""
    sentences = sorted(sentences, key=len)
    size = len(sentences) // dist.get_world_size()
    return sentences[dist.get_rank() * size :][:size]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    sentences = [torch.randint(50, (length,)) for length in [12] * 160 + [320] * 160]
    model = DistributedDataParallel(Language())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    mine = block_of_rank(sentences)
    for start in range(0, len(mine), options.batch):
        tokens = torch.nn.utils.rnn.pad_sequence(mine[start : start + options.batch], batch_first=True)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"perplexity {loss.exp():.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
