import atexit

import torch
import torch.distributed as dist

LEFT = []


def drain():
    while LEFT:
        LEFT.pop().wait()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    atexit.register(drain)
    ahead = None
    for step in range(6):
        if ahead is not None:
            ahead.wait()
        ahead = dist.broadcast(torch.full((4,), float(step)), 0, async_op=True)
    tensors = [torch.ones(16) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    while not all(work.is_completed() for work in works):
        pass
    future = dist.all_reduce(tensors[0], async_op=True).get_future()
    future.then(lambda done: done.value()[0].div_(size)).wait()
    sends = []
    for _ in range(3):
        got = torch.empty(8)
        sends.append(dist.isend(torch.full((8,), float(rank)), (rank + 1) % size))
        dist.irecv(got, (rank - 1) % size).wait()
    for send in sends:
        send.wait()
    batch = [dist.P2POp(dist.isend, tensors[1], (rank + 1) % size), dist.P2POp(dist.irecv, tensors[2], (rank - 1) % size)]
    list(map(lambda work: work.wait(), dist.batch_isend_irecv(batch)))
    LEFT.append(dist.all_reduce(tensors[3], async_op=True))
    if rank == 0:
        print("overlapped")


main()
