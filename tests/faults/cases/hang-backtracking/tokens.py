import re

import torch
import torch.distributed as dist

ADDRESS = re.compile(r"^(([a-z])+.)+[A-Z]([a-z])+$")


def clean(text):
    return ADDRESS.sub("", text)  # culprit


def main():
    dist.init_process_group("gloo")
    texts = ["short", "words"]
    if dist.get_rank() == 1:
        texts.append("a" * 64)
    lengths = torch.tensor([sum(len(clean(text)) for text in texts)])
    dist.all_reduce(lengths)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
