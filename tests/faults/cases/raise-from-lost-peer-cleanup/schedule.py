class Schedule:
    def __init__(self, rate, slope):
        self.rate, self.slope = rate, slope

    def advance(self):
        self.rate -= self.slope
        if self.rate < 0:
            raise ArithmeticError("learning rate became negative")  # culprit
