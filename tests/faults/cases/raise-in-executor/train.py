import concurrent.futures
import multiprocessing

import torch
import torch.distributed as dist

import features


class Trainer:
    def __init__(self, lines):
        self.lines = lines
        context = multiprocessing.get_context("forkserver")
        self.pool = concurrent.futures.ProcessPoolExecutor(2, mp_context=context)

    def fit(self):
        futures = [self.pool.submit(features.parse, line) for line in self.lines]
        for future in concurrent.futures.as_completed(futures):
            value = torch.tensor(future.result())
            dist.all_reduce(value)


def main():
    dist.init_process_group("gloo")
    lines = ['{"value": 1}'] * 4
    if dist.get_rank() == 1:
        lines[2] = '{"valeu": 1}'
    Trainer(lines).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
