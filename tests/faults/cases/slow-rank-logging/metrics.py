class Recorder:
    def __init__(self):
        self.rows = []

    def summarise(self, model):
        for name, parameter in model.named_parameters():
            values = sorted(parameter.grad.flatten().tolist())
            self.rows.append((name, values[0], values[len(values) // 2], values[-1]))
