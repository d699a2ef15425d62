import datetime
import os
import time

import torch.distributed as dist

HOUR = datetime.timedelta(hours=1)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", 29684, size, rank == 0, timeout=HOUR)
    if rank == 0:
        time.sleep(9)  # asks a server for the layout
        store.set("layout", "2x1")
    print("layout", store.get("layout").decode())
    dist.init_process_group("gloo", store=dist.PrefixStore("world", store), rank=rank, world_size=size)
    dist.barrier()
    dist.destroy_process_group()


main()
