import torch
import torch.distributed as dist


def lead(step):
    value = torch.tensor([float(step)])
    dist.all_reduce(value)
    return value


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(150):
        if rank == 0:
            dist.broadcast(torch.ones(2), 0)
        else:
            dist.broadcast(torch.empty(2), 0)
        if step % 2 == rank:  # in turn
            value = lead(step)
        else:
            value = torch.zeros(1)
            dist.all_reduce(value)
        assert value.item() == step
        for root in range(2):
            if rank != root:
                got = torch.empty(1)
                dist.broadcast(got, root)
                continue
            dist.broadcast(torch.ones(1), root)
    print("agreed")
    dist.destroy_process_group()


main()
