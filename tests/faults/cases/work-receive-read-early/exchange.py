import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    halo = torch.zeros(4)
    if rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        request = dist.irecv(halo, 0)  # culprit
        border = halo.sum()
        dist.all_reduce(torch.ones(1))
        print("border", border >= 0, request is not None)
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


main()
