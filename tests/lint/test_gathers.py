"""Rules of what ranks gather. The line of the mistake ends in ``# HERE``."""

from __future__ import annotations

import pytest

from tests.lint.reading import HEAD, facts_in, marked, rules_in_head

CONTRAST = """
{head}
def gather(z):
    parts = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, z)  # HERE
    {after}
    return torch.cat(parts)

dist.init_process_group("nccl")
model = DDP(Net())
for x in batches:
    z = F.normalize(model(x))
    {use}
    loss.backward()
"""
METHOD = """
class Step:
    def __init__(self):
        self.net = DDP(models.resnet18())
    def run(self, x, y):
        features = self.net(x)
        everyone = torch.empty(2 * len(x), 8)
        torch.distributed.all_gather_into_tensor(everyone, features)  # HERE
        {after}
        return F.cross_entropy(everyone, y)
    def fit(self, batches):
        for x, y in batches:
            {use}
Step().fit(batches)
"""
LOSS = "loss = (z @ gather(z).t()).mean()"
STEP = "self.run(x, y).backward()"


@pytest.mark.wrong
@pytest.mark.parametrize(
    "source",
    [
        CONTRAST.format(head="", after="pass", use=LOSS),
        CONTRAST.format(
            head="", after="parts = [p.float() for p in parts]", use="pair = gather(z)\n    loss = pair.sum()"
        ),
        METHOD.format(after="pass", use=STEP),
    ],
)
def test_gathered_tensors_are_part_of_a_loss(source: str) -> None:
    assert rules_in_head(source) == [("gather-without-gradient", marked(source))]


@pytest.mark.right
@pytest.mark.parametrize(
    "source",
    [
        CONTRAST.format(head="", after="parts[dist.get_rank()] = z", use=LOSS),
        CONTRAST.format(
            head="", after="r = dist.get_rank()\n    parts = parts[:r] + [z] + parts[r + 1:]", use=LOSS
        ),
        CONTRAST.format(head="@torch.no_grad()", after="parts[dist.get_rank()] = z", use=LOSS),
        CONTRAST.format(
            head="@torch.no_grad()",
            after="pass",
            use="all_z = gather(z)\n    all_z[rank] = z\n    loss = all_z.sum()",
        ),
        CONTRAST.format(
            head="", after="pass", use="seen = gather(z)\n    print(seen.std())\n    loss = z.sum()"
        ),
        CONTRAST.format(head="", after="pass", use="loss = (z @ gather(z.detach()).t()).mean()"),
        CONTRAST.format(head="", after="pass", use=LOSS).replace("DDP(Net())", "build()"),
        CONTRAST.format(head="", after="pass", use=LOSS).replace(
            "dist.all_gather", "torch.distributed.nn.all_gather"
        ),
        METHOD.format(after="everyone = everyone.detach()", use="self.net(x).sum().backward()"),
        METHOD.format(after="everyone = torch.cat([features, everyone[len(x):]])", use=STEP),
    ],
)
def test_gathered_tensors_keep_their_gradient_or_are_no_part(source: str) -> None:
    assert rules_in_head(source) == []


BANK = """
def gather(x):
    parts = [torch.ones_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)
net = DDP(Net())
bank = build_bank()
for x, y in batches:
    z = net(x)
    loss = {loss}
    loss.backward()
"""


@pytest.mark.parametrize("loss", ["bank(z, gather(z))", "bank(z, index, everyone=gather(z)).mean()"])
def test_gathered_beside_the_own_part_in_what_is_not_followed_is_a_question(loss: str) -> None:
    assert [each.rule for each in facts_in(HEAD + BANK.format(loss=loss))] == ["gather-doubted"]


def test_gathered_without_gradients_on_purpose_is_a_question() -> None:
    source = HEAD + CONTRAST.format(head="@torch.no_grad()", after="pass", use=LOSS)
    assert [each.rule for each in facts_in(source)] == ["gather-doubted"]


@pytest.mark.wrong
@pytest.mark.parametrize("loss", ["bank(gather(z), index)", "F.mse_loss(z, gather(z)[: len(z)])"])
def test_gathered_alone_or_in_what_is_known_is_a_finding(loss: str) -> None:
    assert [rule for rule, _ in rules_in_head(BANK.format(loss=loss))] == ["gather-without-gradient"]


@pytest.mark.right
def test_what_one_caller_gathers_is_not_taken_for_what_another_does() -> None:
    source = BANK.format(loss="bank(gather(keys(x)))").replace(
        "    loss.backward()", "    loss.backward()\n    log(gather(z).std())"
    )
    assert rules_in_head(source) == []
