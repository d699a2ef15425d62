import torch
from torch.nn.parallel import DistributedDataParallel


def unwrap(model):
    return model.module if isinstance(model, DistributedDataParallel) else model


class Callback:
    def before_step(self, loop):
        pass

    def after_step(self, loop, loss):
        pass


class Loop:
    def __init__(self, task, callbacks):
        self.task = DistributedDataParallel(task)
        self.callbacks = callbacks
        self.optimizer = torch.optim.Adagrad(self.task.parameters(), lr=0.1)
        self.step = 0

    def run(self, batches):
        for batch in batches:
            for callback in self.callbacks:
                callback.before_step(self)
            self.optimizer.zero_grad()
            loss = unwrap(self.task).training_step(batch)  # culprit
            loss.backward()
            self.optimizer.step()
            self.step += 1
            for callback in self.callbacks:
                callback.after_step(self, loss)
