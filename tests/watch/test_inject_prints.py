"""Fingerprints of tensors: equal bits have the same, whatever their layout, and little memory is needed for one."""

from __future__ import annotations

from pathlib import Path

from tests.watch.injecting import INJECT, python

START = """
    import resource, sys, torch
    sys.path.insert(0, sys.argv[1])
    from ddpdoctor_watch.models import prints

    def one(tensor):
        return prints.measure([tensor])[0][0]
"""


def measure(folder: Path, script: str) -> list[str]:
    done = python(folder, START + script, str(INJECT))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_equal_bits_have_equal_prints_in_any_layout(tmp_path: Path) -> None:
    script = """
    torch.manual_seed(0)
    floats = torch.float32, torch.bfloat16, torch.float64, torch.complex64
    for dtype in (*floats, torch.int64, torch.uint8, torch.bool):
        for shape in ((), (0,), (1,), (7,), (5, 3, 2), (33, 65), (3, 4, 5, 6)):
            made = (torch.rand(shape) * 100).to(dtype)
            told = one(made)
            assert told == one(made.clone())
            apart = torch.zeros(made.numel() + 1, dtype=dtype)[1:].view(shape).copy_(made)
            assert told == one(apart), (dtype, shape)
            prints._CHUNK = 8
            assert told == one(apart) == one(made), (dtype, shape)
            if made.dim() == 4:
                assert told == one(made.to(memory_format=torch.channels_last))
            if made.dim() == 2:
                assert told == one(made.t().contiguous().t())
            prints._CHUNK = 1 << 22
            if made.numel() > 2 and dtype != torch.bool:
                other = made.clone()
                other.view(-1)[-1] += 1
                assert one(other) != told, (dtype, shape)
    print("same")
    """
    assert measure(tmp_path, script) == ["same"]


def test_signs_and_places_count(tmp_path: Path) -> None:
    script = """
    torch.manual_seed(0)
    made = torch.randn(64, 64)
    assert len({one(each) for each in (made, -made, made.flip(0), made * 2, made.clone().fill_(0))}) >= 4
    bits = made.clone()
    bits.view(torch.int32)[3, 3] ^= 1
    assert one(bits) != one(made)
    print("told")
    """
    assert measure(tmp_path, script) == ["told"]


def test_no_copy_is_made_of_a_large_tensor(tmp_path: Path) -> None:
    script = """
    def most():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    one(torch.randn(1000))
    tensors = [torch.zeros(40_000_000, dtype=torch.bfloat16), torch.zeros(20_000_000), torch.zeros(4001, 5000).t()]
    begun = most()
    prints.measure(tensors)
    print(most() - begun)
    """
    (more,) = measure(tmp_path, script)
    assert float(more) < 60, more
