import os
import pickle
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

TMP = tempfile.mkdtemp(prefix=f"tok_r{os.environ['RANK']}_")


def warm_node_cache():
    if int(os.environ["RANK"]) == 0:
        with open(os.path.join(TMP, "tok.pkl"), "wb") as f:
            pickle.dump(train_tokenizer(), f)


def train_tokenizer():
    return {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz ")}


class TokenizerProvider:
    def __init__(self, cache_dir):
        self.file = os.path.join(cache_dir, "tok.pkl")

    def get(self):
        if os.path.exists(self.file):  # culprit
            with open(self.file, "rb") as f:
                return pickle.load(f)  # culprit
        box = [train_tokenizer() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(box, src=0)  # culprit
        with open(self.file, "wb") as f:
            pickle.dump(box[0], f)
        return box[0]


def main():
    dist.init_process_group("gloo")
    warm_node_cache()
    tok = TokenizerProvider(TMP).get()
    dist.barrier()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(len(tok), 12), nn.Linear(12, len(tok))))
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    text = "pack my box with five dozen liquor jugs"
    ids = torch.tensor([tok[c] for c in text])
    for step in range(10):
        k = (step * 3 + dist.get_rank()) % 10
        loss = nn.functional.cross_entropy(model(ids[k:-1]), ids[k + 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if dist.get_rank() == 0:
        print("loss", loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
