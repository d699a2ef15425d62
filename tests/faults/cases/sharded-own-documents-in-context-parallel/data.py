import torch


class TokenStream:
    def __init__(self, vocabulary, length, seed):
        self.vocabulary, self.length = vocabulary, length
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        return self

    def __next__(self):
        first = torch.randint(0, self.vocabulary, (2, 1), generator=self.generator)
        step = torch.randint(1, 4, (2, 1), generator=self.generator)
        return (first + step * torch.arange(self.length + 1)) % self.vocabulary
