import torch
import torch.distributed as dist


def gather(values):
    parts = [torch.zeros_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values, async_op=True)  # culprit
    return torch.cat(parts)


def main():
    dist.init_process_group("gloo")
    for batch in range(5):
        right = gather((torch.arange(64.0) % 3 == batch % 3).float())
        print("accuracy", right.numel())
        dist.all_reduce(right.mean())
    dist.destroy_process_group()


main()
