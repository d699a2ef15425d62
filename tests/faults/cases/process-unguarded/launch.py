import multiprocessing
import sys


def work(rank):
    print("rank", rank)


def launch(size):
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank,)) for rank in range(size)]
    for process in processes:
        process.start()  # culprit
    for process in processes:
        process.join()
    return max(abs(process.exitcode) for process in processes)


sys.exit(launch(2))  # culprit
