import json

import torch.distributed as dist


class ConfigError(Exception):
    pass


def read(text):
    return json.loads(text)  # culprit


def load(rank):
    text = '{"lr": 0.1' + ("}" if rank else "")
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError("cannot read experiment.json") from error  # culprit


def main():
    dist.init_process_group("gloo")
    load(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()


main()
