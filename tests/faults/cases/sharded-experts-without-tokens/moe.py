import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.nn.functional import all_to_all_single


class Experts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.world = dist.get_world_size()
        self.router = nn.Linear(dim, self.world, bias=False)
        self.ffn = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def dispatch(self, x, index):
        order = index.argsort()
        send = torch.bincount(index, minlength=self.world)
        receive = torch.empty_like(send)
        dist.all_to_all_single(receive, send)
        send, receive = send.tolist(), receive.tolist()
        buffer = x.new_empty(sum(receive), x.shape[1])
        return all_to_all_single(buffer, x[order], receive, send), order, send, receive

    def forward(self, x):
        weight, index = self.router(x).softmax(-1).max(-1)
        tokens, order, send, receive = self.dispatch(x, index)
        if len(tokens) == 0:  # culprit
            return x
        done = self.ffn(tokens)
        back = all_to_all_single(torch.empty_like(x), done, send, receive)  # culprit
        return x.index_add(0, order, back * weight[order].unsqueeze(1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    embed, experts, head = nn.Linear(4, 16), Experts(16), nn.Linear(16, 2)
    torch.manual_seed(rank)
    experts.ffn.apply(lambda m: m.reset_parameters() if isinstance(m, nn.Linear) else None)
    shared = [*embed.parameters(), *experts.router.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam([*shared, *experts.ffn.parameters()], lr=1e-2)
    for step in range(30):
        x = torch.randn(6, 4)
        loss = F.cross_entropy(head(experts(embed(x))), x[:, 0].gt(0).long())
        optimizer.zero_grad()
        loss.backward()
        for p in shared:
            grad = p.grad if p.grad is not None else torch.zeros_like(p)
            dist.all_reduce(grad, op=dist.ReduceOp.SUM)  # culprit
            p.grad = grad / dist.get_world_size()
        optimizer.step()
        if rank == 0:
            print(step, loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
