from __future__ import annotations

import functools
from typing import Any

from ddpdoctor.facts.versions import pick_taken, takes


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
