import os
import signal

import torch
import torch.distributed as dist


class Requests:
    def __init__(self):
        self.seen = []
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, lambda number, frame: self.seen.append(number))


def main():
    dist.init_process_group("gloo")
    requests = Requests()
    for step in range(6):
        if step == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.all_reduce(torch.ones(1))
        if signal.SIGTERM in requests.seen:
            print(f"step {step}: early end asked for by signal {int(signal.SIGTERM)}")
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
