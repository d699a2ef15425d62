"""Two pipeline stages that share the weight of the embedding, as small language models do."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

VOCAB, HIDDEN, SEQUENCE, BATCH = 24, 16, 6, 4


class GPTStage(nn.Module):
    def __init__(self, pre_process, post_process):
        super().__init__()
        self.pre_process, self.post_process = pre_process, post_process
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, HIDDEN))
        if pre_process:
            self.word_embeddings = nn.Embedding(VOCAB, HIDDEN)
        elif post_process:
            self.final_norm = nn.LayerNorm(HIDDEN)
            self.output_weight = nn.Parameter(torch.empty(VOCAB, HIDDEN))

    def shared_weight(self):
        return self.word_embeddings.weight if self.pre_process else self.output_weight

    def forward(self, x):
        if self.pre_process:
            x = self.word_embeddings(x)
        x = x + self.mlp(x)
        return F.linear(self.final_norm(x), self.output_weight) if self.post_process else x


def allreduce_embedding_grads(model, group):
    if model.pre_process and hasattr(model, "word_embeddings"):
        dist.all_reduce(model.word_embeddings.weight.grad, group=group)  # culprit


def train_step(model, optimizer, ids):
    optimizer.zero_grad()
    if model.pre_process:
        hidden = model(ids[:, :-1])
        dist.send(hidden.detach(), dst=1)
        grad = torch.empty_like(hidden)
        dist.recv(grad, src=1)
        hidden.backward(grad)
        return None
    hidden = torch.empty(BATCH, SEQUENCE, HIDDEN)
    dist.recv(hidden, src=0)  # culprit
    hidden.requires_grad_()
    loss = F.cross_entropy(model(hidden).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    dist.send(hidden.grad, dst=0)
    return loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    embedding_group = dist.new_group([0, 1])
    torch.manual_seed(0)
    model = GPTStage(pre_process=rank == 0, post_process=rank == 1)
    dist.broadcast(model.shared_weight().data, src=0, group=embedding_group)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(0)
    for iteration in range(10):
        ids = torch.randint(0, VOCAB, (BATCH, SEQUENCE + 1), generator=data)
        loss = train_step(model, optimizer, ids)
        allreduce_embedding_grads(model, embedding_group)
        optimizer.step()
        if loss is not None:
            print(f"iteration {iteration} lm loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
