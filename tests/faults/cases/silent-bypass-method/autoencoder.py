from torch import nn


class Autoencoder(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.Tanh())
        self.decoder = nn.Linear(hidden, width)

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def compute_loss(self, x):
        return nn.functional.mse_loss(self(x), x)
