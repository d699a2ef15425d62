"""Corrections as code for their place: the line that was read, changed; where it is no whole statement, an example."""

from __future__ import annotations

import ast
from collections.abc import Callable

SET_DEVICE = 'local_rank = int(os.environ["LOCAL_RANK"])\ntorch.cuda.set_device(local_rank)'
"""Lets a rank use the GPU that is its own."""
_SEEDED = {
    "random.shuffle": "random.Random({seed}).shuffle({given})",
    "random.sample": "random.Random({seed}).sample({given})",
    "numpy.random.shuffle": "np.random.default_rng({seed}).shuffle({given})",
    "numpy.random.permutation": "np.random.default_rng({seed}).permutation({given})",
    "torch.randperm": "torch.randperm({given}, generator=torch.Generator().manual_seed({seed}))",
    "random_split": "generator = torch.Generator().manual_seed({seed})\nrandom_split({given}, generator=generator)",
    "train_test_split": "train_test_split({given}, random_state={seed})",
}
"""Function -> the same draw by one seed on all ranks; of those with several dotted names by the last part."""


def read_line(text: str) -> ast.stmt | None:
    """Return the statement that a line is, or the head of one; None where it goes on, or is a part of one."""
    for whole in (text, f"{text} pass"):
        try:
            body = ast.parse(whole).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return body[0] if len(body) == 1 else None
    return None


def find_call(statement: ast.stmt | None, *names: str) -> ast.Call | None:
    """Return the only call of a function or method of one of these names."""
    found = [
        each
        for each in (ast.walk(statement) if statement is not None else ())
        if isinstance(each, ast.Call) and name_function(each) in names
    ]
    return found[0] if len(found) == 1 else None


def name_function(call: ast.Call) -> str:
    """Return the last part of the name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def name_target(statement: ast.stmt | None) -> str | None:
    """Return the variable or attribute that a statement binds; None where it binds none, or several."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    return ast.unparse(target) if isinstance(target, (ast.Name, ast.Attribute)) else None


def rewrite(text: str, names: tuple[str, ...], change: Callable[[ast.Call], object], otherwise: str) -> str:
    """Return a line with one call changed.

    Args:
        text: the line.
        names: which function the call is of.
        change: changes its node.
        otherwise: what is returned where the line is no whole statement, or has no such call.
    """
    statement = read_line(text)
    call = find_call(statement, *names)
    if statement is None or call is None:
        return otherwise
    change(call)
    return ast.unparse(statement)


def set_keyword(call: ast.Call, name: str, value: str | None) -> None:
    """Give a call a keyword argument, in the place of one of that name; or none, where the value is None."""
    call.keywords = [each for each in call.keywords if each.arg != name]
    if value is not None:
        call.keywords.append(ast.keyword(name, ast.parse(value, mode="eval").body))


def tell_seeds(way: str) -> str:
    """Return words on why random numbers differ over ranks."""
    return "ranks are seeded by their rank" if way == "seeded" else "nothing seeds the random numbers"


def seed_draw(function: str, given: str, seed: str = "0") -> str:
    """Return the code by which all ranks make a draw by one seed.

    Args:
        function: that draws, as a dotted name.
        given: its arguments as they stand.
        seed: an expression that is the same on all ranks.
    """
    code = _SEEDED.get(function) or _SEEDED[function.rpartition(".")[2]]
    call = f"f({given})"
    node = ast.parse(call, mode="eval").body
    devices = [each for each in node.keywords if each.arg == "device"] if isinstance(node, ast.Call) else []
    if isinstance(node, ast.Call) and devices:  # a generator is of one device
        node.keywords.remove(devices[0])
        given = ast.unparse(node)[2:-1]
    moved = f".to({ast.unparse(devices[0].value)})" if devices else ""
    return code.format(given=given, seed=seed) + moved
