"""A release of NCCL with a known defect is told only where version, cause and words fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpdoctor import cli

CRASH = """\
NCCL version {version}+cuda12.4
[node-a:288505:0:296459] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x48)
 3  /opt/nccl/lib/libnccl.so(+0x120057) [0x7ff1c18c1057]
node-a: 0x1 NCCL WARN libnccl stopped
"""
WSL = """\
NCCL version {version}+cuda11.1

desk:36629:36635 [0] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0000:21/../../0000:21:00.0
desk:36629:36635 [0] NCCL INFO graph/xml.cc:469 -> 2
desk: Test NCCL failure common.cu:777 'unhandled system error'
"""


def analyze(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    log, out = tmp_path / "train.log", tmp_path / "report.json"
    log.write_text(text)
    cli.main(["analyze", str(log), "--json", str(out), "--quiet", "--no-color"])
    findings: list[dict[str, Any]] = json.loads(out.read_text())["findings"]
    return findings


@pytest.mark.parametrize(
    ("text", "version", "known"),
    [(WSL, "2.8.3", True), (WSL, "2.21.5", False), ("NCCL version {version}\nstep 1\n", "2.8.3", False)],
)
def test_version_and_failure_have_to_fit(tmp_path: Path, text: str, version: str, known: bool) -> None:
    found = [each for each in analyze(tmp_path, text.format(version=version)) if each["code"] == "BKD014"]
    assert bool(found) == known
    for each in found:
        assert (each["role"], each["severity"], each["details"]["version"]) == ("advice", "warning", version)


@pytest.mark.parametrize(("version", "known"), [("2.27.7", True), ("2.27.5", False)])
def test_a_crash_in_the_library_fits_one_release(tmp_path: Path, version: str, known: bool) -> None:
    findings = analyze(tmp_path, CRASH.format(version=version))
    assert [each["code"] for each in findings if each["role"] == "cause"] == ["ERR004"]
    assert any(each["code"] == "BKD014" for each in findings) == known


def test_a_sentence_is_shown_once(tmp_path: Path) -> None:
    line = "[Mon Mar  2 04:11:09 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    findings = analyze(tmp_path, "step 1\n" + line)
    said = [each["text"] for finding in findings for each in finding["evidence"]]
    assert said
    assert len(said) == len(set(said))
