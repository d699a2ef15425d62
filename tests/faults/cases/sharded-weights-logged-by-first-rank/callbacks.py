class WeightNorms:
    """Writes the norm of each weight, for the dashboards."""

    def __init__(self, writer, every):
        self.writer, self.every = writer, every

    def after_step(self, step, model):
        if self.writer is None or step % self.every:
            return
        for name, parameter in model.named_parameters():
            weight = parameter.detach().full_tensor()  # culprit
            self.writer.add_scalar(f"norm/{name}", weight.norm().item(), step)


class Writer:
    def __init__(self):
        self.values = {}

    def add_scalar(self, tag, value, step):
        self.values.setdefault(tag, []).append((step, value))
