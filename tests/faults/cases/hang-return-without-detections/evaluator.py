import torch.distributed as dist


class BoxEvaluator:
    def __init__(self, thr):
        self.thr = thr
        self.rows = []

    def update(self, boxes, scores, targets):
        for b, s, t in zip(boxes, scores, targets):
            if s > self.thr:
                self.rows.append(((b - t).abs().mean().item(), s.item()))

    def accumulate(self):
        if not self.rows:  # culprit
            return {"n": 0, "l1": float("nan")}  # culprit
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, self.rows)
        rows = [r for part in everyone for r in part]
        return {"n": len(rows), "l1": sum(r[0] for r in rows) / len(rows)}
