import os
import signal

import torch
from torch.utils.data import Dataset


class NativeDecoder:
    """Stand-in for a C codec."""

    def decode(self, blob):
        if blob[:4] != b"RIFF":
            os.kill(os.getpid(), signal.SIGKILL)  # culprit
        g = torch.Generator().manual_seed(len(blob))
        return torch.randn(1, 200, generator=g)


class ClipDataset(Dataset):
    def __init__(self, n):
        self.blobs = [b"RIFF" + bytes(10 + i) for i in range(n)]
        self.blobs[67] = b"\x00\x00" + self.blobs[67]  # culprit
        self.decoder = NativeDecoder()

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, i):
        return self.decoder.decode(self.blobs[i]), i % 2  # culprit
