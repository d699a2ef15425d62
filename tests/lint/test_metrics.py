"""Rules of results that each rank has of its own part of the data. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import HEAD, facts_in, marked, rules_in_head

EVALUATION = """
dist.init_process_group("gloo")
model = DDP(Net())
data = datasets.MNIST("x", train=False)
loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False))
def evaluate(model, loader):
    right = seen = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x).argmax(1) == y).sum().item()
            seen += len(y)
    {end}
best = 0
for epoch in range(5):
    {use}
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        EVALUATION.format(end="return right / seen", use="score = evaluate(model, loader)\n    if score > best:  # HERE\n"
                          "        best = score\n        torch.save(model.module.state_dict(), 'best.pt')"),
        EVALUATION.format(end="print(f'accuracy {right / seen}')  # HERE", use="evaluate(model, loader)"),
        EVALUATION.format(end="score = right / seen\n    if dist.get_rank() == 0:\n        log.info(score)  # HERE",
                          use="evaluate(model.module, loader)"),
    ],
)  # fmt: skip
def test_result_of_one_rank_stands_for_all(source: str) -> None:
    assert [each for each in rules_in_head(source) if each[0] == "metric-unreduced"] == [
        ("metric-unreduced", marked(source))
    ]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        EVALUATION.format(end="return reduce_mean(right / seen)", use="print(evaluate(model, loader))"),
        EVALUATION.format(
            end="return right",
            use="total = torch.tensor(evaluate(model, loader))\n    dist.all_reduce(total)",
        ),
        EVALUATION.format(end="print(right)", use="evaluate(model, loader)").replace(
            "sampler=", "collate_fn="
        ),
        EVALUATION.format(end="return right", use="evaluate(model, loader)"),
    ],
)
def test_result_is_reduced_or_of_all_data(source: str) -> None:
    assert "metric-unreduced" not in [rule for rule, _ in rules_in_head(source)]


HANDED = EVALUATION.format(
    end="return right / seen",
    use="score = evaluate(model, loader)\n    if score > best:  # HERE\n        best = score",
).replace("DDP(Net())", "DDP(make(config)) if dist.is_initialized() else make(config)")
INFER = "right += (model(x)", "right += (infer(x, network=model)"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "loader", ["torch.utils.data", "monai.data", "torch_geometric.loader", "torchdata.stateful_dataloader"]
)
def test_result_of_a_model_that_what_is_not_read_runs(loader: str) -> None:
    source = f"import {loader}\nfrom infer import infer" + HANDED.replace(*INFER).replace(
        "DataLoader(", f"{loader}.DataLoader("
    )
    source = source.replace("stateful_dataloader.DataLoader", "stateful_dataloader.StatefulDataLoader")
    assert ("metric-unreduced", marked(source)) in rules_in_head(source)


@pytest.mark.right
@pytest.mark.parametrize(
    ("old", "new"),
    [
        INFER,
        ("right +=", "right += agree(infer(x, network=model)) +"),
        ("(model(x).argmax(1) == y)", "(infer(x) == y)"),
    ],
)
def test_result_that_is_joined_or_of_no_model(old: str, new: str) -> None:
    source = "from infer import infer" + HANDED.replace(old, new).replace(
        "return right", "dist.all_reduce(right); return right"
    )
    if new.startswith("(infer"):
        source = source.replace("dist.all_reduce(right); ", "")
    assert "metric-unreduced" not in [rule for rule, _ in rules_in_head(source)]


BOTH = "total = torch.tensor(score)\n    dist.all_reduce(total)\n    "


@pytest.mark.wrong
@pytest.mark.parametrize(
    "use",
    [
        f"score = evaluate(model, loader)\n    {BOTH}if score > best:  # HERE\n        best = score",
        f"score = evaluate(model, loader)\n    {BOTH}log.info(total)\n    if score < best:  # HERE\n        break",
    ],
)
def test_result_of_one_rank_decides_beside_one_that_is_reduced(use: str) -> None:
    source = EVALUATION.format(end="return right / seen", use=use)
    assert [each for each in rules_in_head(source) if each[0] == "metric-unreduced"] == [
        ("metric-unreduced", marked(source))
    ]


@pytest.mark.right
@pytest.mark.parametrize(
    ("end", "use"),
    [
        ("return right / seen", f"score = evaluate(model, loader)\n    {BOTH}if total > best:\n        break"),
        ("return right / seen", f"score = evaluate(model, loader)\n    {BOTH}print(score)"),
        ("return right", "score = average_over_ranks(evaluate(model, loader))\n    if score > best:\n        break"),
        ("return right", "score = evaluate(model, loader)\n    score = gather(score)\n    if score > best:\n        break"),
        ("right = torch.tensor(right)\n    dist.all_reduce(right)\n    return right / seen",
         "score = evaluate(model, loader)\n    if score > best:\n        break"),
        ("right = agree(right)\n    return right / seen",
         "score = evaluate(model, loader)\n    if score > best:\n        break\n"
         "def agree(value):\n    value = torch.tensor(value)\n    dist.all_reduce(value)\n    return value"),
    ],
)  # fmt: skip
def test_result_that_was_given_to_what_may_join_it(end: str, use: str) -> None:
    assert "metric-unreduced" not in [rule for rule, _ in rules_in_head(EVALUATION.format(end=end, use=use))]


@pytest.mark.right
@pytest.mark.parametrize("inside", ["dist.all_reduce(hits)", "hits = mean_of(hits)"])
def test_result_that_is_reduced_batch_by_batch(inside: str) -> None:
    source = EVALUATION.format(
        end="return right / seen",
        use="score = evaluate(model, loader)\n    if score > best:\n        best = score",
    ).replace(
        "right += (model(x).argmax(1) == y).sum().item()",
        f"hits = (model(x).argmax(1) == y).sum()\n            {inside}\n            right += hits.item()",
    )
    source += "\ndef mean_of(value):\n    dist.all_reduce(value)\n    return value\n"
    assert "metric-unreduced" not in [rule for rule, _ in rules_in_head(source)]


STOPPER = """
class EarlyStopping:
    def __init__(self, patience=5, delta=0.0):
        self.patience, self.delta = patience, delta
        self.best, self.bad, self.stop = None, 0, False
    def {method}(self, loss):
        if self.best is None or loss < self.best - self.delta:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
            self.stop = self.bad >= self.patience
        return self.stop
"""
SCORE = "score = evaluate(model, loader)\n    "
ENDS = "return right / seen"
DECIDES = [
    STOPPER.format(method="__call__")
    + EVALUATION.format(
        end=ENDS, use=f"{SCORE}stopper(score)  # HERE\n    if stopper.stop:\n        break"
    ).replace("best = 0", "stopper = EarlyStopping(3)"),
    STOPPER.format(method="step")
    + EVALUATION.format(end=ENDS, use=f"{SCORE}if stopper.step(score):  # HERE\n        break").replace(
        "best = 0", "stopper = EarlyStopping(3)"
    ),
    EVALUATION.format(
        end=ENDS,
        use=f"{SCORE}is_best = score > best  # HERE\n    best = max(best, score)\n    if is_best:\n        keep(model)",
    ),
    EVALUATION.format(end=ENDS, use=f"{SCORE}scheduler.step(score)  # HERE").replace(
        "best = 0", "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)"
    ),
    EVALUATION.format(end=ENDS, use=f"{SCORE}if better(score, best):  # HERE\n        best = score").replace(
        "best = 0", "best = 0\ndef better(new, old):\n    return new > old + 1e-4"
    ),
    EVALUATION.format(
        end=ENDS, use=f"{SCORE}bad = 0 if score > best else bad + 1  # HERE\n    if bad > 3:\n        break"
    ),
]
TRAINING = """
def train_epoch(model, loader, optimizer):
    running = steps = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running += loss.item() * x.size(0)
        steps += x.shape[0]
    return running, steps
dist.init_process_group("gloo")
data = datasets.MNIST("x")
sampler = DistributedSampler(data)
loader = DataLoader(data, 8, sampler=sampler)
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best, bad = 1e9, 0
for epoch in range(9):
    sampler.set_epoch(epoch)
    {use}
"""
STOPS = TRAINING.format(
    use="""running, steps = train_epoch(model, loader, optimizer)
    if running / steps < best:  # HERE
        best, bad = running / steps, 0
    else:
        bad += 1
    if bad > 3:
        break"""
)
KEPT = (
    STOPPER.format(method="update")
    + """
class Trainer:
    def __init__(self):
        self.model = DDP(Net())
        data = datasets.MNIST("x", train=False)
        self.loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False))
        self.stopper = EarlyStopping()
    def validate(self):
        total = 0.0
        for x, y in self.loader:
            total += F.cross_entropy(self.model(x), y).item()
        return total / len(self.loader)
    def fit(self):
        for epoch in range(9):
            loss = self.validate()
            if self.stopper.update(loss):  # HERE
                return
Trainer().fit()
"""
)


@pytest.mark.wrong
@pytest.mark.parametrize("source", [*DECIDES, STOPS, KEPT])
def test_what_decides_by_the_result_of_one_rank(source: str) -> None:
    assert [each for each in rules_in_head(source) if each[0] == "metric-unreduced"] == [
        ("metric-unreduced", marked(source))
    ]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        STOPPER.format(method="__call__")
        + EVALUATION.format(
            end="return torch.tensor(right / seen)",
            use=f"{SCORE}dist.all_reduce(score)\n    stopper(score.item())\n    if stopper.stop:\n        break",
        ).replace("best = 0", "stopper = EarlyStopping(3)"),
        TRAINING.format(
            use="running, steps = train_epoch(model, loader, optimizer)\n    print(running / steps)"
        ),
        TRAINING.format(
            use="_, steps = train_epoch(model, loader, optimizer)\n    if steps > 100:\n        break"
        ),
        EVALUATION.format(end=ENDS, use=f"{SCORE}scheduler.step()").replace(
            "best = 0", "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)"
        ),
        EVALUATION.format(
            end="if seen > 0:\n        return right / seen", use=f"{SCORE}history.append(score)"
        ),
        EVALUATION.format(end=ENDS, use=f"{SCORE}if epoch > 3:\n        keep(score)"),
        EVALUATION.format(end=ENDS, use=f"{SCORE}score = epoch * 2\n    if score > 3:\n        break"),
        EVALUATION.format(end=ENDS, use=f"{SCORE}note(score)").replace(
            "best = 0", "def note(value):\n    if value is not None:\n        rows.append(value)"
        ),
    ],
)
def test_nothing_is_decided_by_the_result_of_one_rank(source: str) -> None:
    assert "metric-unreduced" not in [rule for rule, _ in rules_in_head(source)]


JOINED = f"{SCORE}total = torch.tensor(score)\n    dist.all_reduce(total)"
SAMPLER = "loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False))"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        EVALUATION.format(end=ENDS, use=JOINED).replace(SAMPLER, f"{SAMPLER}  # HERE"),
        EVALUATION.format(
            end="return reduce_mean(right / seen)", use="print(evaluate(model, loader))"
        ).replace(
            SAMPLER,
            "loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False, drop_last=False))  # HERE",
        ),
        EVALUATION.format(end="dist.all_reduce(right)", use="evaluate(model, loader)").replace(
            SAMPLER,
            "order = DistributedSampler(data)  # HERE\nloader = DataLoader(data, sampler=order, batch_size=8)",
        ),
    ],
)
def test_samples_are_counted_twice(source: str) -> None:
    assert rules_in_head(source) == [("evaluation-padded", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        EVALUATION.format(end=ENDS, use=JOINED).replace("shuffle=False", "shuffle=False, drop_last=True"),
        EVALUATION.format(
            end="everyone = gather(right)[: len(loader.dataset)]", use="evaluate(model, loader)"
        ),
        EVALUATION.format(end=ENDS, use=JOINED).replace(
            SAMPLER, "loader = DataLoader(Subset(data, range(rank, len(data), size)), 8)"
        ),
        EVALUATION.format(end=ENDS, use=JOINED).replace("DistributedSampler(data", "UnpaddedSampler(data"),
        EVALUATION.format(end="right = drop_duplicates(gather(right))", use="evaluate(model, loader)"),
    ],
)
def test_each_sample_is_counted_once_or_it_cannot_be_told(source: str) -> None:
    assert "evaluation-padded" not in [rule for rule, _ in rules_in_head(source)]


VALIDATE = """
def average(value):
    total = value.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
def validate(model, batches, losses, hits):
    for x, y in batches:
        out = model(x)
        loss, hit = {value}
        {first}
        {second}
        losses.update(loss.item(), len(x))
        hits.update(hit.item(), len(x))
dist.init_process_group("gloo")
model = DDP(Net())
validate(model, batches(), Meter(), Meter())
"""


@pytest.mark.wrong
@pytest.mark.parametrize(
    ("first", "second", "name"),
    [("loss = average(loss)", "pass", "hit"), ("pass", "hit = average(hit.detach())", "loss")],
)
def test_one_result_of_a_call_is_reduced_and_another_one_is_not(first: str, second: str, name: str) -> None:
    source = HEAD + VALIDATE.format(value="measure(out, y)", first=first, second=second)
    (fact,) = [each for each in facts_in(source) if each.rule == "result-passed-over"]
    assert fact.details["name"] == name


@pytest.mark.right
@pytest.mark.parametrize(
    ("value", "first", "second"),
    [
        ("measure(out, y)", "loss = average(loss)", "hit = average(hit)"),
        ("measure(out, y)", "pass", "pass"),
        ("measure(out, y)", "loss, hit = average(torch.stack([loss, hit]))", "pass"),
        ("measure(out, y)", "loss = F.softplus(loss)", "pass"),
        ("out[0], y", "loss = average(loss)", "pass"),
    ],
)
def test_results_that_are_reduced_alike_or_by_nothing(value: str, first: str, second: str) -> None:
    source = HEAD + VALIDATE.format(value=value, first=first, second=second)
    assert [each for each in facts_in(source) if each.rule == "result-passed-over"] == []


@pytest.mark.right
def test_what_is_kept_of_some_batches_alone_is_no_result_beside_the_others() -> None:
    source = HEAD + VALIDATE.format(value="measure(out, y)", first="loss = average(loss)", second="pass")
    some = source.replace(
        "hits.update(hit.item(), len(x))", "if len(x) > 4:\n            hits.update(hit.item(), len(x))"
    )
    assert some != source
    assert [each for each in facts_in(some) if each.rule == "result-passed-over"] == []
