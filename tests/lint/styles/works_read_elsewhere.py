import torch
import torch.distributed as dist

class Bucket:
    def __init__(self):
        self.works = []

    def push(self, tensor):
        self.works.append(dist.all_reduce(tensor, async_op=True))

def finish(bucket):
    for work in bucket.works:
        work.wait()

dist.init_process_group("gloo")
bucket, x = Bucket(), torch.ones(4)
bucket.push(x)
finish(bucket)
print(x)
dist.destroy_process_group()
