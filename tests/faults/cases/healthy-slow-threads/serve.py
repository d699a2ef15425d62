import threading
import time

import torch
import torch.distributed as dist


class Heartbeat(threading.Thread):
    """Tells rank 0 every few seconds that this rank lives, over a group of its own."""

    def __init__(self, group, rank, beats):
        super().__init__(daemon=True)
        self.group, self.rank, self.beats = group, rank, beats

    def run(self):
        for _ in range(self.beats):
            if self.rank:
                time.sleep(3)
                dist.send(torch.ones(1), dst=0, group=self.group)
            else:
                dist.recv(torch.zeros(1), src=1, group=self.group)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    beats = dist.new_group([0, 1])
    heart = Heartbeat(beats, rank, 3)
    heart.start()
    if rank == 0:
        heart.join()  # stands still in its main thread; the other one waits in the barrier
    dist.barrier()
    heart.join()
    if rank == 0:
        print("alive")
    dist.destroy_process_group()


main()
