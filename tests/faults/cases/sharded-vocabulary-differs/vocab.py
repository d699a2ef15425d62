import json
from pathlib import Path

import torch


class Vocabulary:
    def __init__(self, words):
        self.words = words
        self.index = {word: i for i, word in enumerate(words)}

    def __len__(self):
        return len(self.words)

    @classmethod
    def load(cls, cache, corpus):
        """Take the vocabulary that this worker has cached, or count the words."""
        path = Path(cache) / "vocab.json"
        if path.exists():
            return cls(json.loads(path.read_text()))
        return cls(["<unk>", *sorted(set(Path(corpus).read_text().split()))])

    def encode_file(self, path):
        words = Path(path).read_text().split()
        return torch.tensor([self.index.get(word, 0) for word in words])
