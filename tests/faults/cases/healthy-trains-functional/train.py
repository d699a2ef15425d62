import torch
import torch.distributed as dist
from torch.func import functional_call, grad, vmap


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank() + 1)

    def loss_of(parameters, x, y):
        return (functional_call(model, parameters, (x,)) - y).square().sum()

    per_sample = vmap(grad(loss_of), in_dims=(None, 0, 0))
    for _ in range(9):
        x = torch.randn(8, 3, generator=generator)
        parameters = {name: p.detach() for name, p in model.named_parameters()}
        gradients = per_sample(parameters, x, x.sum(1, keepdim=True))
        for name, p in model.named_parameters():
            clipped = gradients[name].clamp(-1, 1).mean(0)
            dist.all_reduce(clipped, op=dist.ReduceOp.SUM)
            p.grad = clipped / dist.get_world_size()
        optimizer.step()
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
