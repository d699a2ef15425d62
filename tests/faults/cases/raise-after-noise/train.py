import sys

import torch
import torch.distributed as dist

from metrics import Average


def say(text):
    print(text, file=sys.stderr)


def main():
    say(
        "[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [localhost]:29500 "
        "(errno: 97 - Address family not supported by protocol)."
    )
    dist.init_process_group("gloo")
    say("[W reducer.cpp:330] Warning: Grad strides do not match bucket view strides.")
    average = Average()
    if dist.get_rank() == 1:
        average.add(1.0)
    dist.all_reduce(torch.ones(1))
    print(average.value)
    dist.barrier()


if __name__ == "__main__":
    main()
