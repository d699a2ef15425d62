import torch
import torch.distributed as dist

REDUCERS = {}


def reducer(name):
    def register(function):
        REDUCERS[name] = function
        return function

    return register


@reducer("all")
def everywhere(value):
    dist.all_reduce(value)  # culprit


@reducer("main")
def at_main(value):
    dist.reduce(value, 0)  # culprit


def main():
    dist.init_process_group("gloo")
    chosen = "main" if dist.get_rank() == 1 else "all"
    REDUCERS[chosen](torch.ones(2))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
