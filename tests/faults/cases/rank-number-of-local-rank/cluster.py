import argparse
import os
import subprocess
import sys


def start(node, local_rank, options):
    settings = {
        "RANK": local_rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": options.nodes * options.per_node,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": options.port,
    }
    environment = {**os.environ, **{name: str(value) for name, value in settings.items()}}
    return subprocess.Popen([sys.executable, "worker.py"], env=environment)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--per-node", type=int, default=2)
    parser.add_argument("--port", type=int, default=29681)
    options = parser.parse_args()
    places = [(node, local) for node in range(options.nodes) for local in range(options.per_node)]
    workers = [start(node, local, options) for node, local in places]
    return max(worker.wait() for worker in workers)


if __name__ == "__main__":
    sys.exit(main())
