import torch
import torch.distributed as dist
from torch import nn


class Dispatcher:
    def __init__(self, world):
        self.world = world

    def dispatch(self, tokens, expert):
        order = expert.argsort(stable=True)
        counts = torch.bincount(expert, minlength=self.world).tolist()
        received = tokens.new_empty(sum(counts), tokens.shape[1])
        dist.all_to_all_single(received, tokens[order].contiguous(), counts, counts)  # culprit
        return received, order, counts

    def combine(self, results, order, counts):
        back = torch.empty_like(results)
        dist.all_to_all_single(back, results, counts, counts)
        restored = torch.empty_like(back)
        restored[order] = back
        return restored


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    gate, expert = nn.Linear(16, world), nn.Linear(16, 16)
    dispatcher = Dispatcher(world)
    with torch.no_grad():
        for step in range(10):
            tokens = torch.randn(32 + 4 * rank, 16)
            received, order, counts = dispatcher.dispatch(tokens, gate(tokens).argmax(-1))
            out = dispatcher.combine(expert(received), order, counts)
    print(rank, out.norm().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
