import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
class Crops(Dataset):
    def __init__(self, tokens):
        self.tokens = tokens
    def __len__(self):
        return 1000
    def __getitem__(self, _):
        start = torch.randint(len(self.tokens) - 64, ()).item()
        return self.tokens[start:start + 64]
dist.init_process_group("gloo")
torch.manual_seed(1337 + dist.get_rank())
loader = DataLoader(Crops(torch.load("tokens.pt")), 50)
model = DDP(torch.nn.Embedding(100, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
dist.destroy_process_group()
