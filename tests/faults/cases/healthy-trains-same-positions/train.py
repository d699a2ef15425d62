import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

LENGTH, WORDS = 12, 40


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.places = nn.Embedding(2 * LENGTH, 16)
        self.head = nn.Linear(16, WORDS)

    def forward(self, tokens, places, mask, temperature):
        hidden = self.words(tokens) + self.places(places)
        hidden = hidden.masked_fill(~mask[..., None], 0.0)
        return self.head(hidden) / temperature[:, None, None]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    tokens = torch.randint(1, WORDS, (256, LENGTH + 1))
    sampler = DistributedSampler(tokens)
    loader = DataLoader(TensorDataset(tokens), batch_size=16, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (rows,) in loader:
            step += 1
            inputs, targets = rows[:, :-1], rows[:, 1:]
            # A row's first place goes from sample to sample: packed documents.
            places = torch.arange(LENGTH)[None] + torch.arange(len(rows))[:, None] % LENGTH
            mask = torch.ones_like(inputs, dtype=torch.bool)
            temperature = torch.full((len(rows),), 1.0 + 1.0 / step)
            logits = model(inputs, places, mask, temperature)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
