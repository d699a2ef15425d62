import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from app.inspect import Histograms


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.decoder = nn.Linear(16, 8)

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(8)
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = Histograms(model, rank)
    batches = torch.randn(10, 6, 8, generator=torch.Generator().manual_seed(rank))
    for step, x in enumerate(batches):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        callback.on_step_end(step)
    callback.report()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
