import torch


def micro_batches(seed, count, vocabulary=28, size=3, longest=24):
    """Sentences of words, padded with zeros to the longest of the micro-batch."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        limit = longest if number % 4 == 0 else 5
        lengths = torch.randint(2, limit, (size,), generator=generator)
        ids = torch.zeros(size, int(lengths.max()), dtype=torch.long)
        for row, length in enumerate(lengths):
            start = torch.randint(1, vocabulary, (1,), generator=generator)
            ids[row, :length] = 1 + (start + torch.arange(int(length))) % (vocabulary - 1)
        yield ids
