import os
import subprocess
import sys

COMMON = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29682"}
HOSTS = [
    {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3"},
    {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
]

processes = [
    subprocess.Popen([sys.executable, "-m", "job.main"], env={**os.environ, **COMMON, **host})
    for host in HOSTS
]
sys.exit(1 if any([process.wait() for process in processes]) else 0)
