import torch
import torch.distributed as dist


def is_main_process():
    return not dist.is_initialized() or dist.get_rank() == 0


def collect(predictions):
    if is_main_process():
        return predictions
    dist.gather_object(predictions, dst=0)  # culprit
    return None


def main():
    dist.init_process_group("gloo")
    predictions = list(range(10))
    collect(predictions)
    ready = torch.zeros(1)
    dist.broadcast(ready, src=0)  # culprit
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
