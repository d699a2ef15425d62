import sys

import torch
import torch.distributed as dist

YESTERDAY = """\
[rank3]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4821
[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1704, remote process exited
RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. EADDRINUSE
exitcode: -9 (pid: 71) Signal 9 (SIGKILL) received by PID 71
"""


def main():
    dist.init_process_group("gloo")
    print("summary of the job of yesterday:")
    for line in YESTERDAY.splitlines():
        print("  yesterday |", line)
        print("  yesterday |", line, file=sys.stderr)
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
