KNOWN = {}


def register(kind):
    KNOWN[kind.__name__.lower()] = kind
    return kind


def build(name, **values):
    return KNOWN[name](**values)


@register
class Progress:
    def __init__(self, every):
        self.every = every

    def __call__(self, step, rank):
        print(rank, step, flush=True)


@register
class Checkpoint:
    def __init__(self, every):
        self.every = every

    def __call__(self, step, rank):
        if step % self.every == 0:  # culprit
            print("saved")
