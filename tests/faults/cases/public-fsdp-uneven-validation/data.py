import torch


class PackedDataset:
    """Packs variable-length samples of this rank into fixed-size rows."""

    def __init__(self, num_samples, seq_len, vocab, rank, world, seed, epochs=None):
        self.num_samples, self.seq_len, self.vocab = num_samples, seq_len, vocab
        self.rank, self.world, self.seed, self.epochs = rank, world, seed, epochs

    def _sample(self, index):
        gen = torch.Generator().manual_seed(self.seed * 7919 + index)
        length = int(torch.randint(4, 40, (1,), generator=gen))
        return torch.randint(0, self.vocab, (length,), generator=gen)

    def __iter__(self):
        epoch, buffer = 0, torch.empty(0, dtype=torch.long)
        while self.epochs is None or epoch < self.epochs:
            for index in range(self.rank, self.num_samples, self.world):  # culprit
                buffer = torch.cat([buffer, self._sample(index)])
                while buffer.numel() > self.seq_len:
                    row, buffer = buffer[: self.seq_len + 1], buffer[self.seq_len :]
                    yield row[:-1].unsqueeze(0), row[1:].unsqueeze(0)
            epoch += 1
