import torch
import torch.distributed as dist

from trainer import Trainer, TrainerConfig


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = Trainer(TrainerConfig(epochs=3))
    trainer.fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
