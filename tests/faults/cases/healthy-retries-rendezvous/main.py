import argparse
import multiprocessing
import socket

from connection import connect


def train(rank, size, ports):
    import torch
    import torch.distributed as dist

    attempt = connect(rank, size, ports)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    dist.destroy_process_group()
    if rank == 0:
        print(f"connected at attempt {attempt}, total {int(total)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ports", type=int, nargs="+", default=[29691, 29692])
    options = parser.parse_args()
    with socket.socket() as other:
        other.bind(("", options.ports[0]))  # another program that has the first port
        context = multiprocessing.get_context("spawn")
        ranks = [
            context.Process(target=train, args=(rank, options.ranks, options.ports))
            for rank in range(options.ranks)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    raise SystemExit(max(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
