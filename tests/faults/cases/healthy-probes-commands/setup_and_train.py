import subprocess
import sys

import torch
import torch.distributed as dist

PROBES = {
    "fail": ["sh", "-c", "echo 'NCCL WARN Bootstrap : no socket interface found' >&2; exit 4"],
    "segv": ["sh", "-c", "kill -SEGV $$"],
    "kill": ["sh", "-c", "kill -KILL $$"],
    "slow": ["sleep", "60"],
    "python": [sys.executable, "-c", "import json; json.loads('{')"],
}


def probe(command):
    try:
        subprocess.run(command, check=True, timeout=2)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return False
    return True


def main():
    dist.init_process_group("gloo")
    failed = [name for name, command in PROBES.items() if not probe(command)]
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    print("probes:", ", ".join(failed))


if __name__ == "__main__":
    main()
