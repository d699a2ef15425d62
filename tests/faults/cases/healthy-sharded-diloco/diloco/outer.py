import torch
import torch.distributed as dist


class OuterOptimizer:
    """Holds the global parameters and moves them by the mean of what the workers have changed."""

    def __init__(self, model, lr=0.7, momentum=0.9):
        self.model = model
        self.anchor = [p.detach().clone().requires_grad_() for p in model.parameters()]
        self.optimizer = torch.optim.SGD(self.anchor, lr=lr, momentum=momentum, nesterov=True)

    @torch.no_grad()
    def step(self):
        for anchor, p in zip(self.anchor, self.model.parameters()):
            anchor.grad = anchor - p
            dist.all_reduce(anchor.grad)
            anchor.grad /= dist.get_world_size()
        self.optimizer.step()
        for anchor, p in zip(self.anchor, self.model.parameters()):
            p.copy_(anchor)
