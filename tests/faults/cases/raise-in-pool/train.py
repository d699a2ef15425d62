import multiprocessing

import torch
import torch.distributed as dist

from tokens import encode


def main():
    texts = ["a b", "c", "d"]
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        texts.append(None)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        encoded = pool.map(encode, texts)
    dist.all_reduce(torch.tensor([len(encoded)]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
