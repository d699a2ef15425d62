import multiprocessing
import subprocess
import sys

import torch
import torch.distributed as dist

from probes import probe


def main():
    dist.init_process_group("gloo")
    status = subprocess.run(["sh", "-c", "exit 2"], check=False).returncode
    crash = subprocess.run([sys.executable, "-c", "import ctypes; ctypes.string_at(0)"], check=False).returncode
    process = multiprocessing.get_context("spawn").Process(target=probe)
    process.start()
    process.join()
    print("probes:", [status, crash, process.exitcode])
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
