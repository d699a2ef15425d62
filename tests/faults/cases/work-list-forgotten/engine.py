import torch
import torch.distributed as dist


class Metrics:
    def __init__(self):
        self.pending = []
        self.values = {}

    def log(self, name, value):
        tensor = torch.tensor([float(value)])
        self.values[name] = tensor
        self.pending.append(dist.reduce(tensor, 0, async_op=True))  # culprit

    def report(self):
        return {name: tensor.item() for name, tensor in self.values.items()}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    metrics = Metrics()
    for step in range(4):
        metrics.log(f"loss/{step}", step)
        metrics.log(f"samples/{step}", 32)
    if dist.get_rank() == 0:
        print("reported", len(metrics.report()))
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
