from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        self.classes = nn.Linear(6, 3)
        self.boxes = nn.Linear(6, 4, bias=False)

    def forward(self, x):
        features = self.backbone(x)
        return {"classes": self.classes(features), "boxes": self.boxes(features)}
