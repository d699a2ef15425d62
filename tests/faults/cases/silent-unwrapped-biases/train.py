import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(9):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        for p in model.parameters():
            if p.ndim > 1:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        optimizer.step()  # culprit
    if dist.get_rank() == 0:
        print("done")
    dist.destroy_process_group()


main()
