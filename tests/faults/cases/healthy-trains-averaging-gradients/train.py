import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


class Trainer:
    def __init__(self, model, lr):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        for p in model.parameters():
            dist.broadcast(p.data, src=0)

    def reduce(self):
        grads = [p.grad for p in self.model.parameters()]
        flat = _flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        flat.div_(dist.get_world_size())
        for grad, mean in zip(grads, _unflatten_dense_tensors(flat, grads)):
            grad.copy_(mean)

    def step(self, x, y):
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(x), y).backward()
        self.reduce()
        self.optimizer.step()


def main():
    dist.init_process_group("gloo")
    trainer = Trainer(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)), 0.1)
    for _ in range(9):
        trainer.step(torch.randn(6, 4), torch.randn(6, 2))
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
