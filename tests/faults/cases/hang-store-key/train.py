import datetime

import torch.distributed as dist


def read_plan(store, rank):
    return store.get(f"plan/{rank}")  # culprit


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.TCPStore("127.0.0.1", 29734, is_master=rank == 0, timeout=datetime.timedelta(hours=1))
    if rank == 0:
        for other in range(1, dist.get_world_size() - 1):  # forgets the last one
            store.set(f"plan/{other}", "train")
    else:
        print(rank, read_plan(store, rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
