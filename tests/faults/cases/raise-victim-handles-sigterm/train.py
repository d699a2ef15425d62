import signal
import time

import torch.distributed as dist


class Preempted(Exception):
    pass


def on_terminate(number, frame):
    raise Preempted("the scheduler wants the machine back")


def schedule(step):
    rate = 0.1 - 0.05 * step
    if rate < 0:
        raise ValueError("learning rate is negative")  # culprit
    return rate


def main():
    signal.signal(signal.SIGTERM, on_terminate)
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 2:
        for step in range(5):
            schedule(step)
    else:
        time.sleep(30)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
