import time
import zlib

import torch
from torch.utils.data import Dataset


class Bucket:
    """An object store, far away."""

    def __init__(self, count):
        self.blobs = [zlib.compress(bytes((i * j) % 256 for j in range(64))) for i in range(count)]

    def get(self, key):
        time.sleep(0.004)
        return self.blobs[key]


class Pictures(Dataset):
    def __init__(self, bucket):
        self.bucket = bucket

    def __len__(self):
        return len(self.bucket.blobs)

    def __getitem__(self, index):
        raw = zlib.decompress(self.bucket.get(index))
        return torch.tensor(list(raw)) / 255, index % 2
