from torch.distributed.elastic.multiprocessing.errors import record

from trainer import Settings, Trainer


@record
def main():
    trainer = Trainer(Settings(epochs=3))
    trainer.fit()


if __name__ == "__main__":
    main()
