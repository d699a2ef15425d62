import contextlib


@contextlib.contextmanager
def no_sync(model):
    """What DDP has, for FSDP2."""
    model.set_requires_gradient_sync(False)  # culprit
    yield
