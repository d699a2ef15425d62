import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor


class ExpertLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.world = dist.get_world_size()
        self.router = nn.Parameter(torch.randn(width, self.world) * 0.02)
        self.bias = nn.Parameter(torch.tensor([4.0] + [0.0] * (self.world - 1)), requires_grad=False)
        self.expert = nn.Linear(width, width)

    def exchange(self, x, receive, send):
        return wait_tensor(all_to_all_single_autograd(x, receive, send, dist.group.WORLD))

    def forward(self, x):
        scores = (x @ self.router + self.bias).softmax(-1)
        best = scores.argmax(-1)
        order = torch.argsort(best)
        send = torch.bincount(best, minlength=self.world)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        arrived = self.exchange(x[order], receive.tolist(), send.tolist())
        worked = self.expert(arrived).tanh()
        returned = self.exchange(worked, send.tolist(), receive.tolist())
        y = torch.zeros_like(x)
        y[order] = returned
        gate = scores.gather(1, best.unsqueeze(1))
        return x + gate * y, receive.sum()


def synchronize(shared, owned):
    for p in shared:
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)
        p.grad /= dist.get_world_size()
    for p in owned:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad / dist.get_world_size()


def train():
    rank = dist.get_rank()
    torch.manual_seed(2)
    layer, head = ExpertLayer(10), nn.Linear(10, 2)
    torch.manual_seed(200 + rank)
    layer.expert.reset_parameters()
    shared = [layer.router, *head.parameters()]
    owned = list(layer.expert.parameters())
    optimizer = torch.optim.Adam(shared + owned, lr=0.01)
    for step in range(10):
        x = torch.randn(20, 10)
        hidden, count = layer(x)
        loss = nn.functional.cross_entropy(head(hidden), (x[:, 0] > 0).long())
        optimizer.zero_grad()
        loss.backward()
        synchronize(shared, owned)
        optimizer.step()
    counts = [torch.zeros_like(count) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, count)
    if rank == 0:
        print("tokens per expert", [int(c) for c in counts])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()
