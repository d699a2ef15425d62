def load(rank):
    config = {"lr": 0.1, "weight_decay": 0.01}
    if rank == 0:
        config.pop("weight_decay")
    return config
