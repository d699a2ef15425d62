import os
import torch
from torch.utils.data import random_split, Dataset
from torch.distributed import init_process_group, destroy_process_group
from model import GPT, create_optimizer
from trainer import Trainer, TrainerConfig
class CharDataset(Dataset):
    def __init__(self, path):
        self.data = open(path).read()
    def __len__(self):
        return len(self.data)
    def __getitem__(self, i):
        return self.data[i]
def ddp_setup():
    acc = torch.accelerator.current_accelerator()
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"{acc}:{rank}")
    torch.accelerator.set_device_index(rank)
    init_process_group(backend=torch.distributed.get_default_backend_for_device(device), device_id=device)
def get_train_objs(cfg):
    dataset = CharDataset(cfg.path)
    train_len = int(len(dataset) * 0.9)
    lengths = [train_len, len(dataset) - train_len]
    train_set, test_set = random_split(dataset, lengths, generator=torch.Generator().manual_seed(1))
    model = GPT(cfg)
    optimizer = create_optimizer(model, cfg)
    return model, optimizer, train_set, test_set
def main(cfg):
    ddp_setup()
    model, optimizer, train_data, test_data = get_train_objs(cfg)
    trainer = Trainer(TrainerConfig(), model, optimizer, train_data, test_data)
    trainer.train()
    destroy_process_group()
if __name__ == "__main__":
    main(None)
