import os
import subprocess
import sys

METHOD = "file://" + os.path.abspath("rendezvous-of-sweep")


def run_trial(number):
    workers = [
        subprocess.Popen([sys.executable, "trial.py", METHOD, str(rank), str(number)]) for rank in range(2)
    ]
    return [worker.wait() for worker in workers]


for number in range(2):
    codes = run_trial(number)
    print("trial", number, "ended with", codes, flush=True)
sys.exit(max(codes))
