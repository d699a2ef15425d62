import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


class BackgroundSaver:
    """Writes the rank's shard beside training and then tells the others how large it was."""

    def __init__(self):
        self.thread = None

    def start(self, state, step):
        copies = {name: value.to_local().clone() for name, value in state.items()}
        self.thread = threading.Thread(target=self._write, args=(copies, step), name="saver")
        self.thread.start()

    def _write(self, copies, step):
        path = f"shard-{dist.get_rank()}-{step}.pt"
        torch.save(copies, path)
        sizes = [None] * dist.get_world_size()
        dist.all_gather_object(sizes, sum(c.numel() for c in copies.values()))  # culprit
        if dist.get_rank() == 0:
            print("saved", step, sizes)

    def join(self):
        if self.thread is not None:
            self.thread.join()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    saver = BackgroundSaver()
    for step in range(60):
        x = torch.randn(16, 64)
        (model(x) - x).abs().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 2:
            saver.join()
            saver.start(model.state_dict(), step)
    saver.join()
    print("end")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
