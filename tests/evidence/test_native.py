"""Which of the native frames of a process says most, and how it is called."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence.native import NativeFrame, leave_interpreter, name_native, shorten_name, telling_frame

PAUSE = NativeFrame("pause", "libc.so.6")
WORK = NativeFrame("do_work", "libfoo.so", "foo.c:12")
STRIPPED = NativeFrame("?", "libcodec.so.3")
FFI = NativeFrame("ffi_call", "libffi.so.8.1.2")
CTYPES = NativeFrame("PyCFuncPtr_call", "_ctypes.cpython-311-x86_64-linux-gnu.so")
PYTHON = NativeFrame("Py_RunMain", "python3.11")


@pytest.mark.parametrize(
    ("frames", "told"),
    [
        ((PAUSE, WORK, FFI, CTYPES), WORK),
        ((PAUSE, STRIPPED, WORK, FFI), WORK),
        ((PAUSE, STRIPPED, FFI, CTYPES), STRIPPED),
        ((PAUSE, FFI, CTYPES), PAUSE),
        ((NativeFrame("flock", "libc.so.6"), NativeFrame("fcntl_flock", "python/fcntl.so")), NativeFrame("flock", "libc.so.6")),
        ((NativeFrame("?", "libc.so.6"), PAUSE), PAUSE),
        ((NativeFrame("?", "libc.so.6"),), NativeFrame("?", "libc.so.6")),
        ((NativeFrame("c10d::Work::wait", "libtorch_cpu.so"), PYTHON), NativeFrame("c10d::Work::wait", "libtorch_cpu.so")),
        ((), None),
    ],
)  # fmt: skip
def test_the_innermost_frame_of_nobodys_system_tells_most(
    frames: tuple[NativeFrame, ...], told: NativeFrame | None
) -> None:
    assert telling_frame(frames) == told


def test_a_frame_is_named_by_function_and_library() -> None:
    assert name_native(WORK) == "do_work() of libfoo.so (foo.c:12)"
    assert name_native(PAUSE) == "pause() of libc.so.6"
    assert name_native(STRIPPED) == "libcodec.so.3, which has no function names"


def test_what_carries_a_call_into_a_library_is_left_away() -> None:
    assert leave_interpreter((PAUSE, WORK, FFI, CTYPES, PYTHON)) == (PAUSE, WORK)
    assert leave_interpreter((FFI, WORK)) == (FFI, WORK)  # a call back
    assert leave_interpreter((PYTHON,)) == (PYTHON,)
    assert leave_interpreter(()) == ()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "gloo::transport::tcp::Pair::send(gloo::Buffer*, unsigned long)",
            "gloo::transport::tcp::Pair::send",
        ),
        ("do_work", "do_work"),
        ("(anonymous namespace)::Engine::run(int)", "(anonymous)::Engine::run"),
        ("std::function<void (int)>::operator()(int) const", "std::function<void (int)>::operator()"),
        ("c10d::Work::operator->(int)", "c10d::Work::operator->"),
        ("0x7f3a6f7c3f7a", "?"),
        ("f" * 1000, "f" * 159 + "…"),
    ],
)
def test_names_are_given_without_arguments(name: str, short: str) -> None:
    assert shorten_name(name) == short
