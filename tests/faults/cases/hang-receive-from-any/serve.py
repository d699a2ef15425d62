import torch
import torch.distributed as dist


def serve(requests):
    for _ in range(requests):
        request = torch.zeros(1)
        dist.recv(request)


def ask(count):
    for _ in range(count):
        dist.send(torch.ones(1), dst=0)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        serve(requests=6)
    else:
        ask(count=2)
    dist.barrier()
    dist.destroy_process_group()
