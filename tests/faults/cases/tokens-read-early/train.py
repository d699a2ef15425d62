import os
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class DataModule:
    def __init__(self, root):
        self.root = root
        self.path = os.path.join(root, "tokens.pt")

    def prepare_data(self):
        shutil.rmtree(self.root, ignore_errors=True)
        os.makedirs(self.root)
        toks = []
        for doc in range(40):
            time.sleep(0.05)
            toks.append(torch.randint(0, 30, (9,), generator=torch.Generator().manual_seed(doc)))
        torch.save(torch.stack(toks), self.path)

    def setup(self):
        self.ds = TensorDataset(torch.load(self.path))  # culprit

    def train_dataloader(self):
        self.sampler = DistributedSampler(self.ds)
        return DataLoader(self.ds, 5, sampler=self.sampler)


class NextToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30))

    def forward(self, t):
        return nn.functional.cross_entropy(self.net(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())


class Runner:
    def fit(self, module, dm, epochs=2):
        if dist.get_rank() == 0:
            dm.prepare_data()
        dm.setup()  # culprit
        model = DDP(module)
        opt = torch.optim.Adam(model.parameters(), 1e-2)
        loader = dm.train_dataloader()
        for e in range(epochs):
            dm.sampler.set_epoch(e)
            for (t,) in loader:
                opt.zero_grad()
                loss = model(t)
                loss.backward()
                opt.step()
        if dist.get_rank() == 0:
            print("final", loss.item())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    Runner().fit(NextToken(), DataModule(os.path.join(tempfile.gettempdir(), f"dm_{os.getppid()}")))
    dist.destroy_process_group()
