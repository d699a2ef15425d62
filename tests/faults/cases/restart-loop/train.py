import os
import time


def restore(rank):
    if rank == 1:
        raise LookupError("no checkpoint named best")  # culprit


def main():
    restore(int(os.environ["RANK"]))
    time.sleep(30)


if __name__ == "__main__":
    main()
