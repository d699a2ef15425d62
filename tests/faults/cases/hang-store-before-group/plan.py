import datetime
import os

import torch.distributed as dist

PORT = 29683
HOUR = datetime.timedelta(hours=1)


class Plan:
    def __init__(self, rank, size):
        self.kv_store = dist.TCPStore("127.0.0.1", PORT, size, rank == 0, timeout=HOUR)

    def read(self, name):
        return self.kv_store.get(name)  # culprit


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    plan = Plan(rank, size)
    if rank == 0:
        plan.kv_store.wait(["ready/1"], HOUR)  # culprit
        plan.kv_store.set("layout", "2x1")
    else:
        print(plan.read("layout"))
        plan.kv_store.set("ready/1", "yes")
    dist.init_process_group("gloo", store=plan.kv_store, rank=rank, world_size=size)


main()
