"""``ddpdoctor collect``, and archives given to ``analyze``: bounded, private, scrubbed, and unpacked with care."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

import ddpdoctor_checks
from ddpdoctor.aftermath import archives
from ddpdoctor.cli.incident import write_incident
from ddpdoctor.gather import collecting
from ddpdoctor.gather.collecting import CONTENTS, MEBI, collect
from ddpdoctor.plugins import CHECKS, Entry
from tests.cli.conftest import Run

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"


@pytest.fixture(autouse=True)
def builtin(entries: list[Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    entries[:] = [Entry("ddpdoctor", CHECKS, "builtin", lambda: ddpdoctor_checks.register)]
    monkeypatch.setattr(collecting, "DUMPS", ("/nowhere", "x"))


def read(archive: str) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {m.name: f.read() for m in tar if (f := tar.extractfile(m)) is not None}


def make_tar(name: str, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(name, "w:gz") as tar:
        for member, data in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))


def test_archive_is_private_scrubbed_and_lists_what_is_not_there(run: Run) -> None:
    Path("logs").mkdir()
    Path("logs/train.log").write_text(f"step 1\nHF_TOKEN={TOKEN}\n")
    Path("elsewhere.log").write_text("not asked for\n")
    Path("logs/link.log").symlink_to(Path("elsewhere.log").absolute())
    Path("logs/data.bin").write_bytes(b"\0" * 100)
    before = os.umask(0)
    try:
        told = run("collect", "logs", "--out", "out.tar.gz")
    finally:
        os.umask(before)
    assert told.code == 0
    assert stat.S_IMODE(Path("out.tar.gz").stat().st_mode) == 0o600
    found = read("out.tar.gz")
    kept = {name.partition("/")[2]: data for name, data in found.items()}
    assert kept["files/0-logs/train.log"].startswith(b"step 1\n")
    assert TOKEN.encode() not in b"".join(found.values())
    assert not any("link.log" in name or "data.bin" in name for name in kept)
    assert b"data.bin is binary" in kept[CONTENTS]
    assert "next: ddpdoctor analyze out.tar.gz" in told.out
    assert run("collect", "--out", "out.tar.gz").code == 2  # nothing is overwritten
    assert run("collect", "missing.log").code == 2
    assert run("collect", "--limit", "0").code == 2


def test_tools_that_fail_are_named_and_what_they_print_is_kept(tmp_path: Path) -> None:
    tools = (
        ("a.txt", ("sh", "-c", "echo GPU is lost; exit 15")),
        ("b.txt", ("no-such-tool-anywhere",)),
        ("c.txt", ("echo", "fine")),
    )
    found = collect(tmp_path / "x.tar.gz", [], host="h", limit=MEBI, tools=tools)
    kept = read(str(tmp_path / "x.tar.gz"))
    assert (kept["h/a.txt"], kept["h/c.txt"]) == (b"GPU is lost\n", b"fine\n")
    assert "h/b.txt" not in kept
    assert any("code 15" in each for each in found.missing)
    assert "no-such-tool-anywhere is not installed" in found.missing


def test_files_and_the_whole_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "FILE_LIMIT", 4096)
    (tmp_path / "a.log").write_text("first\n" + "x" * 20_000 + "\nlast\n")
    (tmp_path / "b.log").write_text("b" * 4000)
    found = collect(
        tmp_path / "x.tar.gz", [tmp_path / "a.log", tmp_path / "b.log"], host="h", limit=7000, tools=()
    )
    kept = read(str(tmp_path / "x.tar.gz"))["h/files/0-a.log"]
    assert kept.startswith(b"first\n")
    assert kept.endswith(b"\nlast\n")
    assert b"bytes omitted by ddpdoctor collect" in kept
    assert len(kept) < 5000
    assert any("limit" in each for each in found.missing)


def test_archives_of_two_nodes_are_read_as_one_incident(run: Run) -> None:
    Path("incident").mkdir()
    write_incident(Path("incident"))
    for host in ("node-a", "node-b"):
        collect(Path(f"{host}.tar.gz"), [Path("incident", host)], host=host, limit=MEBI * 64, tools=())
    told = run("analyze", "node-a.tar.gz", "node-b.tar.gz", "--json", "report.json")
    report = json.loads(Path("report.json").read_text())
    first = report["findings"][0]
    assert (told.code, first["code"], first["ranks"]) == (1, "BKD010", [11])
    assert "went silent 41 s later" in first["message"]
    places = [event["file"] for event in report["evidence"]["job"][0]["timeline"] if event["file"]]
    assert any(place.startswith("node-b.tar.gz/") for place in places)
    assert not any("ddpdoctor-archive" in place for place in places)


def test_members_that_lead_out_of_an_archive_are_left_out(run: Run, tmp_path: Path) -> None:
    def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
        made = tarfile.TarInfo(name)
        made.type, made.linkname, made.mtime = kind, link, 1e30 if name == "train.log" else 0
        return made

    bad = b"escaped"
    make_tar(
        "out.tar.gz",
        (member("/etc/ddpdoctor-test"), bad),
        (member("../outside.log"), bad),
        (member("a/../../outside.log"), bad),
        (member("link", tarfile.SYMTYPE, "/etc"), b""),
        (member("link/passwd"), bad),
        (member("hard", tarfile.LNKTYPE, "/etc/passwd"), b""),
        (member("pipe", tarfile.FIFOTYPE), b""),
        (member("device", tarfile.CHRTYPE), b""),
        (member("train.log"), b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"),
        (member("train.log"), bad),
        (member("train.log/inner"), bad),
    )
    told = run("analyze", "out.tar.gz", "--json", "report.json")
    assert "ERR008" in told.out
    assert "are skipped" in told.err
    assert not list(tmp_path.parent.rglob("outside.log"))
    assert not Path("/etc/ddpdoctor-test").exists()


def test_archive_without_end_is_cut_and_one_inside_another_is_not_opened(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MEMBER_LIMIT", 1000)
    monkeypatch.setattr(archives, "MOST_MEMBERS", 3)
    make_tar("inner.tar.gz", (tarfile.TarInfo("x.log"), b"x"))
    inner = Path("inner.tar.gz").read_bytes()
    big = tarfile.TarInfo("big.log")
    make_tar(
        "out.tar.gz",
        (tarfile.TarInfo("inner.log.gz"), inner),
        (big, b"0" * 2000),
        (tarfile.TarInfo("c.log"), b"c\n"),
    )
    told = run("analyze", "out.tar.gz")
    assert "too large" in told.err
    assert "archive inside an archive" in told.err
    Path("torn.tar.gz").write_bytes(inner[: len(inner) // 2])
    assert run("analyze", "torn.tar.gz").code == 3


def test_half_an_archive_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(collecting, "run_tool", stop)
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path / "x.tar.gz", [], host="h", limit=MEBI, tools=(("a.txt", ("echo",)),))
    assert list(tmp_path.iterdir()) == []
