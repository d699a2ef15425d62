import os


class Watchdog:
    def __init__(self, limit):
        self.limit = limit

    def feed(self, step):
        if step > self.limit:
            os._exit(3)  # culprit
