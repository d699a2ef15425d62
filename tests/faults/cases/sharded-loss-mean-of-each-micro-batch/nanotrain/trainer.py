import torch
import torch.nn.functional as F


class Trainer:
    def __init__(self, model, accumulate, lr):
        self.model, self.accumulate = model, accumulate
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.loss = 0.0

    def compute_loss(self, ids):
        logits = self.model(ids[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=0)  # culprit

    def train(self, batches):
        updates = 0
        for number, ids in enumerate(batches, 1):
            last = number % self.accumulate == 0
            self.model.set_requires_gradient_sync(last)
            loss = self.compute_loss(ids) / self.accumulate  # culprit
            loss.backward()  # culprit
            if last:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
                updates += 1
                self.loss = loss.item() * self.accumulate
        return updates
