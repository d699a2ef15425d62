"""The decorators of torch.distributed, in each form that they have had: the same call, result and traceback."""

from __future__ import annotations

import importlib
import linecache
import traceback
import types
from typing import Any

import pytest

from tests.watch.injecting import INJECT

FORMS = {
    "2.4": '''
import functools, time
_c10d_logger = None
logged = []

def _get_msg_dict(func_name, *args, **kwargs):
    logged.append(func_name)
    return {}

def _time_logger(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        t1 = time.time_ns()
        func_return = func(*args, **kwargs)
        time_spent = time.time_ns() - t1

        msg_dict = _get_msg_dict(func.__name__, *args, **kwargs)
        msg_dict["time_spent"] = f"{time_spent}ns"
        _c10d_logger.debug(msg_dict)

        return func_return

    return wrapper
''',
    "2.6": '''
import functools
_c10d_logger = None
logged = []

def _get_msg_dict(func_name, *args, **kwargs):
    return {}

class _WaitCounter:
    def __init__(self, name):
        logged.append(name.rpartition(".")[2])
    def guard(self):
        import contextlib
        return contextlib.nullcontext()

def _time_logger(func):
    @functools.wraps(func)
    def wrapper(*args, **kwargs):
        with _WaitCounter(f"pytorch.wait_counter.c10d.{func.__name__}").guard():
            func_return = func(*args, **kwargs)
        return func_return

    return wrapper
''',
}  # fmt: skip
"""Written after torch/distributed/c10d_logger.py of these versions: what their wrappers ask of the module."""


@pytest.fixture
def decorators(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(INJECT))
    return importlib.import_module("ddpdoctor_watch.calls.decorators")


def make_logger(version: str, text: str) -> types.ModuleType:
    module = types.ModuleType(f"c10d_logger_{version.replace('.', '_')}")
    name = f"/of/torch/{version}/c10d_logger.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), vars(module))
    vars(module)["_c10d_logger"] = types.SimpleNamespace(debug=lambda message: None)
    return module


def new_group(ranks: Any = None, fail: bool = False) -> str:
    if fail:
        raise ValueError("no such rank")
    return "a group"


def describe_failure(function: Any) -> str:
    try:
        function(None, fail=True)
    except ValueError as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError


@pytest.mark.parametrize("version", FORMS)
def test_each_form_makes_the_same_call_with_the_same_traceback(
    decorators: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, object]] = []

    def begin(spec: Any, args: object, kwargs: object) -> int:
        seen.append(("begin", spec.name))
        return 5

    monkeypatch.setattr(decorators.ring, "begin", begin)
    monkeypatch.setattr(decorators.ring, "end", lambda token: seen.append(("end", token)))
    monkeypatch.setattr(decorators.ring, "failed", lambda token: seen.append(("failed", token)))
    module = make_logger(version, FORMS[version])
    plain = module._time_logger(new_group)
    make = decorators._make_decorator(
        module, module._time_logger, decorators._FORMS["_time_logger"], decorators._make_tools()
    )
    assert make is not None
    watched = make(new_group)
    assert watched([0, 1]) == "a group" == plain([0, 1])
    assert module.logged == ["new_group", "new_group"]
    assert seen == [("begin", "new_group"), ("end", 5)]
    assert describe_failure(watched) == describe_failure(plain)
    assert seen[2:] == [("begin", "new_group"), ("failed", 5), ("end", 5)]


@pytest.mark.parametrize(
    "change",
    [("_get_msg_dict", "_make_message"), ("time_spent = ", "time_spent = _clock_skew + ")],
    ids=["renamed", "one name more"],
)
def test_a_form_that_asks_for_other_names_is_left_as_it_is(decorators: Any, change: tuple[str, str]) -> None:
    module = make_logger("later", FORMS["2.4"].replace(*change) + "_clock_skew = 0\n")
    assert (
        decorators._make_decorator(
            module, module._time_logger, decorators._FORMS["_time_logger"], decorators._make_tools()
        )
        is None
    )


def test_the_form_of_one_version_without_its_names_is_not_taken_for_another(decorators: Any) -> None:
    """What `run` did with torch 2.5: it took the form with the counter, and new_group failed in the job."""
    module = make_logger("2.4", FORMS["2.4"])
    only_new = decorators._FORMS["_time_logger"][:1]
    assert decorators._make_decorator(module, module._time_logger, only_new, decorators._make_tools()) is None
