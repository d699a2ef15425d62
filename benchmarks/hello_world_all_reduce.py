"""The smallest script that torchrun can be asked to run: one all_reduce over gloo."""

from __future__ import annotations


def main() -> None:
    """Sum the ones of all ranks."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    if total.item() != dist.get_world_size():
        raise SystemExit(f"{total.item()} instead of {dist.get_world_size()}")
    print(f"hello from rank {dist.get_rank()} of {dist.get_world_size()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
