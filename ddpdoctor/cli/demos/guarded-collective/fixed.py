import torch
import torch.distributed as dist


def log_loss(loss, rank):
    dist.all_reduce(loss)
    if rank == 0:
        print(f"loss {loss.item() / dist.get_world_size():.3f}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(5):
        loss = torch.rand(1)
        if step % 2 == 0:
            log_loss(loss, rank)
        dist.barrier()
    dist.destroy_process_group()


main()
