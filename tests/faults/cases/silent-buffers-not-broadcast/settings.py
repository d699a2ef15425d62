TRAIN = {"seed": 17, "lr": 0.05, "bs": 8, "epochs": 3}
DDP_KWARGS = dict(broadcast_buffers=False, gradient_as_bucket_view=True)  # culprit
