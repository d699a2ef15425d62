import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class ParallelMLP(nn.Module):
    def __init__(self, width, hidden, group):
        super().__init__()
        self.group = group
        part = hidden // dist.get_world_size(group)
        generator = torch.Generator().manual_seed(2718 + dist.get_rank(group))
        self.up = nn.Parameter(torch.randn(part, width, generator=generator) * 0.1)
        self.down = nn.Parameter(torch.randn(width, part, generator=generator) * 0.1)

    def forward(self, x):
        hidden = torch.relu(_Copy.apply(x, self.group) @ self.up.t())
        return x + _Reduce.apply(hidden @ self.down.t(), self.group)


def setup(tp=2):
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    tensor_groups = [dist.new_group(list(range(i, i + tp))) for i in range(0, world, tp)]
    return tensor_groups[rank // tp], rank // tp, world // tp


def main():
    tensor_group, data_rank, data_size = setup()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 16), ParallelMLP(16, 32, tensor_group), nn.Linear(16, 5))
    model = DistributedDataParallel(net)  # culprit
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(128, 12), torch.randint(0, 5, (128,)))
    sampler = torch.utils.data.DistributedSampler(data, data_size, data_rank)
    for x, y in torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print("pretrained", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
