import logging

import torch
import torch.distributed as dist

from retry import retry

log = logging.getLogger(__name__)


def setup():
    try:
        if not torch.cuda.is_available():
            raise RuntimeError("Distributed package doesn't have NCCL built in")
        dist.init_process_group("nccl")
    except (RuntimeError, ValueError) as error:
        log.exception("nccl does not work (%s), using gloo", error)
        dist.init_process_group("gloo")


def main():
    setup()
    calls = []

    @retry(3)
    def read():
        calls.append(1)
        if len(calls) < 3:
            raise OSError(104, "Connection reset by peer")
        return torch.ones(2)

    dist.all_reduce(read())
    try:
        dist.all_reduce("no tensor")
    except TypeError:
        log.warning("that was no tensor", exc_info=True)
    dist.destroy_process_group()
    print(f"finished after {len(calls) - 1} retries")


if __name__ == "__main__":
    logging.basicConfig()
    main()
