import functools

import torch.distributed as dist


def entry(defaults):
    def decorate(function):
        @functools.wraps(function)
        def wrapper():
            dist.init_process_group("gloo")
            return function(dict(defaults))

        return wrapper

    return decorate
