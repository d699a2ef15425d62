from __future__ import annotations

import functools
import types
from typing import Any

from ddpdoctor.facts.versions import NEWEST, choose_text, describe_untried, pick_taken, takes
from scripts.torch_surface import VERSIONS


class Older:
    def __init__(self, spec: object, exit_barrier_timeout: float = 300) -> None:
        self.spec = spec


class Newer(Older):
    def __init__(self, spec: object, exit_barrier_timeout: float = 300, shutdown_timeout: int = 30) -> None:
        super().__init__(spec, exit_barrier_timeout)


class HandsOn(Older):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class HandsOnNewer(Newer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


def test_what_a_class_takes() -> None:
    assert takes(Newer, "shutdown_timeout")
    assert not takes(Older, "shutdown_timeout")
    assert takes(HandsOnNewer, "shutdown_timeout")
    assert not takes(HandsOn, "shutdown_timeout")


def test_what_a_function_takes() -> None:
    def wanted(a: int, /, b: int, *, c: int) -> None: ...

    assert [takes(wanted, name) for name in "abc"] == [False, True, True]
    assert not takes(lambda **anything: None, "b")
    assert not takes(lambda *anything: None, "anything")
    assert takes(functools.wraps(wanted)(lambda *args, **kwargs: None), "b"), "a decorator hides nothing"


def test_what_does_not_say_what_it_takes_takes_nothing() -> None:
    assert not takes(dict.fromkeys, "no_such")
    assert not takes(type, "name")


def test_what_is_not_taken_is_left_out() -> None:
    assert pick_taken(Newer, shutdown_timeout=3) == {"shutdown_timeout": 3}
    assert pick_taken(Older, shutdown_timeout=3, exit_barrier_timeout=1) == {"exit_barrier_timeout": 1}


def test_a_torch_that_is_newer_than_what_was_tried_is_said_to_be() -> None:
    assert tuple(map(int, VERSIONS[-1].split(".")[:2])) == NEWEST
    newer = f"{NEWEST[0]}.{NEWEST[1] + 1}.0.dev20261001+cpu"
    said = describe_untried(newer)
    assert said is not None
    assert said.startswith(
        f"torch {newer} is newer than the newest release that ddpdoctor was tested with (2.15)"
    )
    assert [describe_untried(each) for each in (VERSIONS[-1], "2.4.1+cu121", None, "unknown", "")] == [
        None
    ] * 5


def test_the_text_is_chosen_that_asks_what_torch_asks() -> None:
    module = types.ModuleType("of_torch")
    exec(
        "import time\n_clock = 1\ndef old():\n    return time.time() + _clock\ndef new():\n    return _clock\n",
        vars(module),
    )
    texts = ("module._clock", "module._clock + module.time.time()")
    chosen = [choose_text(texts, module, vars(module)[name].__code__) for name in ("new", "old")]
    assert chosen == list(texts)
    assert choose_text(texts[:1], module, vars(module)["old"].__code__) is None
