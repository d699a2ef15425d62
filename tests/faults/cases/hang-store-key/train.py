import datetime

import torch.distributed as dist


def read_plan(store, rank):
    return store.get(f"plan/{rank}")  # culprit


def open_store(rank):
    hour = datetime.timedelta(hours=1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=hour, wait_for_workers=False) if rank == 0 else None
    port = [store.port if store is not None else None]
    dist.broadcast_object_list(port, src=0)
    return store or dist.TCPStore("127.0.0.1", port[0], is_master=False, timeout=hour)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = open_store(rank)
    if rank == 0:
        for other in range(1, dist.get_world_size() - 1):  # forgets the last one
            store.set(f"plan/{other}", "train")
    else:
        print(rank, read_plan(store, rank))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
