import torch.distributed as dist

def retry(function, *args):
    for _ in range(3):
        try:
            return function(*args)
        except OSError:
            pass

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    box = ["plan"]
    retry(lambda: dist.broadcast_object_list(box, 0))
else:
    box = [None]
    dist.broadcast_object_list(box, 0)
print(box)
dist.destroy_process_group()
