"""Every form of a secret is hidden, alone and encoded; innocent texts stay as they are."""

from __future__ import annotations

import pytest

from ddpdoctor.evidence.texts.entries import ENTRIES
from ddpdoctor.gather.scrub import scrub, scrub_argv, scrub_source
from tests.secrets.forms import ENCODED, FORMS, INNOCENT, MIXED, TOKENS, Form, leaks


@pytest.mark.parametrize("form", [*FORMS, *ENCODED], ids=lambda form: form.id)
def test_secrets_are_hidden_in_every_form(form: Form) -> None:
    scrubbed = scrub(form.text)
    assert leaks(form, scrubbed) == []
    assert scrubbed.count("\n") == form.text.count("\n")
    assert leaks(form, scrub(scrubbed)) == []


@pytest.mark.parametrize("form", TOKENS, ids=lambda form: form.id)
@pytest.mark.parametrize(
    "around", ["{}", "x={}", "'{}'", "({})", "a,{},b", "<{}>", "[{}]", "{}:", "/data/{}/x", "see {}."]
)
def test_tokens_are_hidden_whatever_stands_around_them(form: Form, around: str) -> None:
    assert form.secret not in scrub(around.format(form.secret))


@pytest.mark.parametrize("text", [*INNOCENT, *(entry.example for entry in ENTRIES)])
def test_what_a_diagnosis_needs_stays(text: str) -> None:
    assert scrub(text) == text


def test_innocent_texts_stay_side_by_side() -> None:
    text = "\n".join(INNOCENT)
    assert scrub(text) == text


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["x.py", "--password", "a b;c", "--lr", "0.1", "--token", "--fp16"], ["x.py", "--password", "***", "--lr", "0.1", "--token", "--fp16"]),
        (["x.py", "--password=correct horse battery"], ["x.py", "--password=***"]),
        (["x.py", "-p", "hunter"], ["x.py", "-p", "***"]),
        (["x.py", "-p", "29500"], ["x.py", "-p", "29500"]),
        (["torchrun", "-p29500"], ["torchrun", "-p29500"]),
        (["srun", "-p", "gpu", "x.py"], ["srun", "-p", "gpu", "x.py"]),
        (["mysql", "-pSECRET"], ["mysql", "-p***"]),
        (["mysql", "-p12345"], ["mysql", "-p***"]),
        (["x", "-pSECRET"], ["x", "-p***"]),
        (["x", "--max-tokens", "4096"], ["x", "--max-tokens", "4096"]),
        (["curl", "-u", "me:hunter"], ["curl", "-u", "***"]),
    ],
)  # fmt: skip
def test_command_lines_word_by_word(given: list[str], wanted: list[str]) -> None:
    assert scrub_argv(given) == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("x = f(y)  # hunter2", "x = f(y)  # ***"),
        ("x = f(y)  # pw of the cluster: horse", "x = f(y)  # ***"),
        ("x = f(y)  # the loss", "x = f(y)  # the loss"),
        ("x = '#a1b2c3'  # red", "x = '#a1b2c3'  # red"),
        ("dist.barrier()  # ddpdoctor: ignore[COL001] rank0 only", "dist.barrier()  # ddpdoctor: ignore[COL001] rank0 only"),
        ("login(token='zebra9x') # ok", "login(token='***') # ok"),
    ],
)  # fmt: skip
def test_comments_of_source_lines_give_nothing_away(line: str, wanted: str) -> None:
    assert scrub_source(line) == wanted


def test_what_the_environment_calls_secret_is_hidden_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ddpdoctor.gather.secrets import known

    monkeypatch.setenv("CLUSTER_PASSWORD", "correct-horse-9")
    known._known_values.cache_clear()
    try:
        assert scrub("cannot open correct-horse-9 here, " + MIXED[:6]) == "cannot open *** here, " + MIXED[:6]
    finally:
        monkeypatch.undo()
        known._known_values.cache_clear()
        scrub.__globals__["_hide"].cache_clear()
