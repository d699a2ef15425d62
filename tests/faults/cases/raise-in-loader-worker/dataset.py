import torch
from torch.utils.data import Dataset


class Images(Dataset):
    def __init__(self, size, labels):
        self.size = size
        self.labels = [float(i % 3) for i in range(labels)]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = torch.full((6,), float(index))
        return image, self.labels[index]  # culprit
