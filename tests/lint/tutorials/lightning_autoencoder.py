import lightning as L
import torch, torch.nn as nn, torch.nn.functional as F, torchvision as tv
class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 128), nn.ReLU(), nn.Linear(128, 28 * 28))
    def forward(self, x):
        return self.encoder(x)
    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)
dataset = tv.datasets.MNIST(".", download=True, transform=tv.transforms.ToTensor())
train, val = torch.utils.data.random_split(dataset, [55000, 5000])
autoencoder = LitAutoEncoder()
trainer = L.Trainer(devices=2, strategy="ddp")
trainer.fit(autoencoder, torch.utils.data.DataLoader(train, shuffle=True), torch.utils.data.DataLoader(val))
