import torch
import torch.distributed as dist


def search(rank):
    """One call of native code that computes for some seconds and lets nobody in."""
    size = 1100
    matrix = torch.rand(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    return torch.linalg.matrix_power(matrix / size, 2 ** 14 - 1).abs().sum()


def main():
    dist.init_process_group("gloo")
    value = search(1) if dist.get_rank() == 1 else torch.tensor(0.0, dtype=torch.float64)
    dist.broadcast(value, src=1)
    if dist.get_rank() == 0:
        print("found", value.isfinite().item())
    dist.destroy_process_group()


main()
