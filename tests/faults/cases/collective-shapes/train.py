import torch
import torch.distributed as dist


class Meter:
    def __init__(self, names):
        self.values = torch.zeros(len(names))

    def reduce(self):
        dist.all_reduce(self.values)  # culprit
        return self.values


def main():
    dist.init_process_group("gloo")
    names = ["loss", "accuracy"]
    print(Meter(names).reduce())
    if dist.get_rank() == 1:
        names += [f"class {index}" for index in range(2000)]
    print(Meter(names).reduce())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
