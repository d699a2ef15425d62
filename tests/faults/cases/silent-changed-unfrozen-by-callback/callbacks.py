import torch.distributed as dist


class BackboneFinetuning:
    def __init__(self, unfreeze_at):
        self.unfreeze_at = unfreeze_at

    def on_epoch_start(self, net, epoch):
        if epoch == self.unfreeze_at:
            for p in net.backbone.parameters():
                p.requires_grad = True  # culprit

    def on_epoch_end(self, net, epoch, loss):
        pass


class PrintLoss:
    def on_epoch_start(self, net, epoch):
        pass

    def on_epoch_end(self, net, epoch, loss):
        if dist.get_rank() == 0:
            print("epoch", epoch, "loss", round(loss, 4))
