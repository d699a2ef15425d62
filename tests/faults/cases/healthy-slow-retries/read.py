import time

import torch
import torch.distributed as dist


class Mount:
    def __init__(self):
        self.failures = 4

    def read(self):
        if self.failures:
            self.failures -= 1
            raise OSError("Stale file handle")
        return 7


def read_with_retries(mount, attempts=6):
    for attempt in range(attempts):
        try:
            return mount.read()
        except OSError as error:
            print("again:", error)
            time.sleep(0.5 * 2**attempt)
    raise TimeoutError("the mount is gone")


def main():
    dist.init_process_group("gloo")
    count = torch.tensor([read_with_retries(Mount()) if dist.get_rank() == 1 else 7])
    dist.all_reduce(count)
    if dist.get_rank() == 0:
        print("read", count.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
