import argparse

from einops_of_nobody import rearrange  # culprit


def main():
    parser = argparse.ArgumentParser()
    print(parser.parse_args(), rearrange)


if __name__ == "__main__":
    main()
