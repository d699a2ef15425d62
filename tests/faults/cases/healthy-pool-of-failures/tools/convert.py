import argparse
import concurrent.futures
import os

import torch


def convert(number):
    if number % 4 == 3:
        raise ValueError(f"file {number} is damaged")
    return torch.ones(2) * number


def die(number):
    os._exit(13)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    good = bad = 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(convert, number) for number in range(8)]:
            try:
                future.result()
                good += 1
            except ValueError as error:
                print("left out:", error)
                bad += 1
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        try:
            pool.submit(die, 0).result()
        except concurrent.futures.process.BrokenProcessPool as error:
            print("started again after:", error)
    print(f"{good} converted, {bad} failed")


if __name__ == "__main__":
    main()
