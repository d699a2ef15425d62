class Shards:
    def __init__(self, rank, count):
        self.files = []
        for index in range(count):
            self.files.append(open(f"shard-{rank}-{index}.bin", "wb"))  # culprit
