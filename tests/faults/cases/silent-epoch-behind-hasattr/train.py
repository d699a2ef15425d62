import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from buckets import DistributedBucketBatchSampler


class Utterances(Dataset):
    def __init__(self, n=192):
        g = torch.Generator().manual_seed(5)
        self.lengths = torch.randint(10, 50, (n,), generator=g).tolist()
        self.labels = torch.randint(0, 4, (n,), generator=g).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        feats = torch.randn(self.lengths[i], 8, generator=g) + self.labels[i] * 0.3
        return feats, self.labels[i]


def pad_collate(items):
    feats, labels = zip(*items)
    lens = torch.tensor([f.size(0) for f in feats])
    return nn.utils.rnn.pad_sequence(feats, batch_first=True), lens, torch.tensor(labels)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 24, 3, padding=1)
        self.head = nn.Linear(24, 4)

    def forward(self, x, lens):
        h = self.conv(x.transpose(1, 2)).relu()
        mask = torch.arange(h.size(-1))[None] < lens[:, None]
        return self.head((h * mask[:, None]).sum(-1) / lens[:, None])


def run_epoch(model, loader, opt):
    total = 0.0
    for x, lens, y in loader:
        loss = nn.functional.cross_entropy(model(x, lens), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / len(loader)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ds = Utterances()
    bs = DistributedBucketBatchSampler(ds.lengths, 8, dist.get_rank(), dist.get_world_size())
    loader = DataLoader(ds, batch_sampler=bs, collate_fn=pad_collate)
    model = DDP(Encoder())
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(3):
        if hasattr(loader.sampler, "set_epoch"):  # culprit
            loader.sampler.set_epoch(epoch)  # culprit
        avg = run_epoch(model, loader, opt)
        if dist.get_rank() == 0:
            print(f"[{epoch}] {avg:.4f}")
    dist.destroy_process_group()
