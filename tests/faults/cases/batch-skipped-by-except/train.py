import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("asr")
VOCAB = "abcdefghij"


class Transcripts(Dataset):
    def __init__(self, n=96):
        self.texts = ["".join(VOCAB[(i * 7 + j) % 10] for j in range(6)) for i in range(n)]
        self.texts[41] = "abc#ef"

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randn(6, 12, generator=g), self.texts[i]


def encode(text):
    return [VOCAB.index(c) for c in text]


def collate(items):
    return torch.stack([a for a, _ in items]), [t for _, t in items]


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(12, 24, batch_first=True)
        self.fc = nn.Linear(24, 10)

    def forward(self, x):
        return self.fc(self.rnn(x)[0])


def train_one(model, opt, feats, texts):
    opt.zero_grad()
    logits = model(feats)
    target = torch.tensor([encode(t) for t in texts])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    loss.backward()
    opt.step()
    return loss.item()


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Acoustic())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    ds = Transcripts()
    dl = DataLoader(ds, 8, sampler=DistributedSampler(ds, shuffle=False), collate_fn=collate)
    for epoch in range(2):
        losses = []
        for feats, texts in dl:
            try:
                losses.append(train_one(model, opt, feats, texts))
            except ValueError:  # culprit
                log.debug("skipping batch with bad transcript")
                continue  # culprit
        avg = torch.tensor([sum(losses), len(losses)])
        dist.all_reduce(avg)
        if dist.get_rank() == 0:
            print("epoch", epoch, (avg[0] / avg[1]).item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
