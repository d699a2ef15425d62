import logging
import sys

import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
TEXTS = [
    "NCCL error in: ProcessGroupNCCL.cpp:2019, unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "CUDA error: device-side assert triggered",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.7]:21842",
    "DataLoader worker (pid 4711) is killed by signal: Killed.",
]


def classify(text):
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        logging.error("recognised: %s", error, exc_info=True)
        return str(error).split()[0]


def main():
    dist.init_process_group("gloo")
    kinds = [classify(text) for text in TEXTS]
    dist.all_reduce(torch.tensor(len(kinds)))
    print(len(kinds), "errors recognised")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
