import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.trunk(x))


def set_trainable(module, flag):
    for p in module.parameters():
        p.requires_grad = flag  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Model()
    set_trainable(model.trunk, False)
    wrapped = FSDP(
        model,
        use_orig_params=True,
        auto_wrap_policy=lambda module, recurse, nonwrapped_numel: recurse or isinstance(module, nn.Linear),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(rank)
    for step in range(40):
        x = torch.randn(16, 8, generator=g)
        y = (x[:, 0] > (0 if rank else 3)).long()
        loss = nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 0.55:  # culprit
            set_trainable(wrapped.trunk, True)  # culprit
    print("rank", rank, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
