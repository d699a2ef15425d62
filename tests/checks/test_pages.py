"""Every code that `check` or a watched job can show is registered as the catalogue has it, with a whole page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ddpdoctor_checks
from ddpdoctor.evidence.bundle import KINDS
from ddpdoctor.judge import Check, Registry
from ddpdoctor.judge.catalogue import PAGE_ORDER, PAGE_SECTIONS

# Codes and names are public: never renamed, never reused.
CATALOGUE = """\
NET001 port-in-use error
NET002 master-unresolvable error
NET003 loopback-advertised error
NET004 interface-missing error
NET005 port-range-blocked error
NET006 ranks-missing error
NET007 rendezvous-host-unmatched error
NET008 peer-name-unresolvable error
NET009 port-invalid error
NET010 rendezvous-file-stale warning
NET013 peer-unreachable error
NET014 large-packets-lost error
ENV001 rank-variables-missing error
ENV002 rank-duplicated error
ENV003 world-size-inconsistent error
ENV004 variables-differ warning
ENV005 versions-differ warning
ENV006 launcher-variables-conflict warning
ENV008 shared-memory-small warning
ENV009 open-files-limit-low warning
ENV010 locked-memory-low warning
ENV011 threads-oversubscribed warning
ENV013 workaround-left-on warning
ENV014 debug-setting-left-on warning
ENV015 clocks-differ warning
ENV016 orphaned-ranks warning
BKD001 backend-unavailable error
BKD002 backend-initialisation-failed error
BKD003 device-shared error
BKD004 device-out-of-range error
BKD005 device-unsupported error
BKD006 communication-library-conflict warning
BKD007 peer-to-peer-broken error
BKD010 device-faulty error
BKD011 stage-timed-out error
BKD012 fabric-not-ready error
BKD013 network-plugin-failed error
BKD014 library-version-faulty warning
COL001 result-wrong error
DDP001 parameters-unused error
DDP019 gradient-wrong error
DDP020 model-factory-failed error
DDP021 strategy-wrong error
NUM001 replicas-diverged error
CKP006 checkpoint-not-restored error
CKP007 optimizer-state-lost warning
PRF001 bandwidth-low warning
PRF002 link-slow warning
ERR001 exception-uncaught error
ERR002 killed-out-of-memory error
ERR003 bus-error error
ERR004 segmentation-fault error
ERR005 killed-by-signal error
ERR006 exited-nonzero error
ERR007 device-error-asynchronous error
ERR008 device-out-of-memory error
ERR009 script-not-started error
ERR010 aborted-at-exit warning
ERR011 watchdog-blocked error
ENV007 local-rank-argument error
ENV012 hangup-unprotected warning
ENV017 spawn-unguarded error
ENV018 restart-loop warning
ENV019 process-group-uninitialised error
ENV020 launch-size-mismatch warning
ENV021 launch-smaller-than-asked warning
NET011 link-lost error
NET012 address-family-noise info
NET015 node-lost error
NET016 rdma-path-broken error
BKD008 backend-device-mismatch error
BKD009 device-unset warning
COL002 collective-missing error
COL003 collective-mismatch error
COL004 collective-order-swapped error
COL005 collective-timeout error
COL006 group-creation-mismatch error
COL007 work-not-waited error
COL008 rank-finished-early error
COL009 rank-stalled error
COL010 gather-without-gradient warning
COL011 point-to-point-unmatched error
COL012 teardown-unmatched warning
DAT003 batches-uneven error
DDP003 parameter-ready-twice error
DDP004 static-graph-violated error
DDP009 model-differs error
DDP010 buffer-modified-in-place error
DDP014 attribute-on-wrapper error
DDP016 device-ids-invalid error
DDP017 nothing-trainable error
CKP002 checkpoint-read-early error
CKP003 load-onto-one-device warning
CKP004 wrapper-prefix error
CKP005 directory-raced warning
DDP005 wrapper-bypassed error
DDP006 parameters-changed-after-wrap error
DDP008 no-sync-before-step error
DDP015 model-unwrapped error
DAT001 data-not-sharded error
DAT002 epoch-not-set warning
NUM006 optimizer-diverged warning
NUM003 non-finite-origin error
NUM004 scaler-diverged error
CKP001 checkpoint-raced error
DAT008 download-raced warning
DAT009 model-parallel-data-differs error
COL013 group-roles-wrong error
NUM007 norm-of-shard error
NUM008 loss-mean-of-means warning
NUM009 world-size-changes-result warning
NUM002 buffers-diverged warning
DDP013 batch-norm-unsynchronised warning
DAT004 split-differs error
DAT005 sampler-differs error
DAT007 evaluation-padded warning
DDP007 no-sync-around-backward-only warning
DDP012 data-parallel-mixed warning
PRF003 rank-straggling warning
PRF004 loader-bound warning
PRF005 gradient-sync-redundant warning
PRF006 communication-bound warning
PRF007 pipeline-bubble warning
DAT006 augmentation-repeated warning
DDP018 backward-skipped error
NUM005 metric-unreduced warning
"""
# Codes that need no `check`, but that its experiments with the user's model can see as well.
ALSO = """\
DDP002 parameters-unused-somewhere error
DDP011 unused-search-unneeded info
"""
ROWS = {
    code: (name, severity) for code, name, severity in map(str.split, (CATALOGUE + ALSO).strip().splitlines())
}
REQUIRED = [line.split()[0] for line in CATALOGUE.strip().splitlines()]


def load() -> Registry:
    registry = Registry()
    ddpdoctor_checks.register(registry)
    return registry


REGISTRY = load()


@pytest.mark.parametrize("code", REQUIRED)
def test_code_of_the_catalogue_is_registered(code: str) -> None:
    assert code in REGISTRY.pages


@pytest.mark.parametrize("code", REGISTRY.pages)
def test_page_agrees_with_the_catalogue_and_is_whole(code: str) -> None:
    page = REGISTRY.pages[code]
    assert (page.name, page.severity) == ROWS[code]
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", page.name)
    assert page.title
    assert re.fullmatch(r"\d+\.\d+\.\d+", page.since)
    sections = page.sections()
    assert sections[""], "a page begins with a sentence that says what is wrong"
    assert [heading for heading in PAGE_SECTIONS if not sections.get(heading)] == []
    assert list(sections)[1:] == [heading for heading in PAGE_ORDER if heading in sections]


@pytest.mark.parametrize("declared", REGISTRY.checks, ids=lambda each: each.id)
def test_declaration_names_only_what_exists(declared: Check) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z0-9_+-]+)+", declared.id)
    assert set(declared.needs) <= {*KINDS, "launch"}
    assert set(declared.codes) <= set(ROWS)
    assert declared.family in (
        "network",
        "environment",
        "backends",
        "collectives",
        "ddp",
        "bandwidth",
        "hangs",
        "training",
        "crash",
        "silent",
        "source",
    )


def test_every_page_is_of_a_code_that_some_check_yields() -> None:
    folder = Path(ddpdoctor_checks.__file__).parent / "catalogue"
    assert {file.name for file in folder.iterdir()} == {f"{code}.md" for code in REGISTRY.pages}


@pytest.mark.parametrize("code", REGISTRY.pages)
def test_head_of_a_page_is_plain_yaml(code: str) -> None:
    """GitHub shows it as a table."""
    page = REGISTRY.pages[code]
    assert not re.search(r": |:$| #|^[^\w/]", page.title)


@pytest.mark.parametrize("code", REGISTRY.pages)
def test_code_explains_others_that_exist(code: str) -> None:
    explained = REGISTRY.pages[code].explains
    assert set(explained) <= set(ROWS) - {code}
    assert [other for other in explained if code in REGISTRY.pages[other].explains] == []


COMMANDS = {"check": r"`(ddpdoctor )?check\b", "job": r"`(run|attach|analyze)`", "lint": r"`lint`"}
"""Kind of command -> how a page names it."""


@pytest.mark.parametrize("code", REGISTRY.pages)
def test_page_tells_what_each_kind_of_command_does_about_the_code(code: str) -> None:
    kinds = {
        kind
        for each in REGISTRY.checks
        for kind, command in (("check", "check"), ("job", "run"), ("lint", "lint"))
        if code in each.codes and each.belongs_to(command)
    }
    if len(kinds) > 1:
        text = REGISTRY.pages[code].text
        assert {kind for kind in kinds if not re.search(COMMANDS[kind], text)} == set()
