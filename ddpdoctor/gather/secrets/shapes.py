"""Secrets that are known by their shape: gitleaks' rules, tokens with a vendor's prefix, keys, and long random runs."""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ddpdoctor.gather.secrets.spans import Span

MORE_PREFIXES = (
    # What gitleaks has no rule for, or one whose length leaves out older and shortened tokens. From the vendors' pages:
    # Hugging Face, OpenAI, Replicate, NVIDIA, Groq, Weights & Biases, LangSmith, Together, xAI, RunPod, Fireworks,
    # Docker, Google, GitLab, Slack, SendGrid, Vault, npm, PyPI, Stripe, Tailscale, Supabase, Figma, New Relic.
    "hf_ sk- sk-proj- sk-or-v1- r8_ nvapi- gsk_ wandb_v1_ lsv2_pt_ lsv2_sk_ tgp_v1_ xai- rpa_ fw_ dckr_pat_ dckr_oat_ "
    "AIza ya29. GOCSPX- gloas- xoxa- xoxb- xoxp- xoxs- xoxe. xoxe- xapp- SG. hvs. hvb. hvr. npm_ pypi- whsec_ tskey- "
    "sbp_ figd_ NRAK- NRJS- NRII- dnkey- ATATT3 ATCTT3 sgp_ fo1_ fm2_ sqp_ squ_ tfp_ dop_v1_ doo_v1_ dor_v1_ lin_api_ "
    "glsa_ glc_ secret_ IQoJb3JpZ2lu FwoGZXIvYXdz HRKU- github_pat_ key- pk_live_ pk_test_"
).split()
MORE_PATTERNS = (
    # detect-secrets (Apache-2.0): Discord, Mailchimp, Twilio; docs.aws.amazon.com IAM unique ids; RFC 7519.
    (".", r"(?<![\w-])[MNO][a-zA-Z\d_-]{23,27}\.[a-zA-Z\d_-]{6}\.[a-zA-Z\d_-]{27,40}(?![\w-])"),
    ("-us", r"(?<![A-Za-z0-9])[0-9a-z]{32}-us[0-9]{1,2}(?![A-Za-z0-9])"),
    ("AC", r"(?<![A-Za-z0-9])AC[0-9a-f]{32}(?![A-Za-z0-9])"),
    (":AA", r"(?<!\d)\d{8,10}:AA[0-9A-Za-z_-]{32,36}(?![\w-])"),
    ("Q~", r"(?<![A-Za-z0-9])[a-zA-Z0-9_~.-]{3}\dQ~[a-zA-Z0-9_~.-]{31,34}"),
    ("AKIA", r"(?<![A-Za-z0-9])AKIA[0-9A-Z]{16}(?![0-9A-Z])"),
    ("ASIA", r"(?<![A-Za-z0-9])ASIA[0-9A-Z]{16}(?![0-9A-Z])"),
    ("eyJ", r"(?<![A-Za-z0-9])eyJ[\w-]{6,4000}\.[\w-]{6,4000}(?:\.[\w-]{0,4000})?"),
    ("eyJ", r"(?<![A-Za-z0-9])eyJ[A-Za-z0-9+/_-]{30,4000}={0,2}"),
)
KEY_LONGEST = 20_000
"""Characters of a private key between its first and last line."""
_BEGIN = re.compile(r"-{0,5}BEGIN ([A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)-----")
_KEY_BODY = re.compile(
    r"(?:\s{0,80}(?:[A-Za-z0-9+/=]{1,80}(?=\s|\\|\Z)|(?:Proc-Type|DEK-Info|Version|Comment): [^\n]{0,200})){0,400}"
)
_RUN = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_=-]{40,}")
_RANDOM = 40
"""Characters of a long random text."""
_SEGMENT = re.compile(r"[A-Za-z0-9+=]{1,4000}")
_KEY_HEADS = ("MII", "b3BlbnNzaC1rZXk")
"""How the base64 of keys begins, RFC 8017 in DER and OpenSSH's."""
_LONGEST_SEGMENT = 16
"""Characters without a separator in a random run: words of paths and symbols are shorter, or not random."""
_CHANGES = 0.38
"""Changes between capitals, small letters and digits for each character: 0.64 in random base64, below 0.3 in names."""
_SHORT = 3
"""Characters of keywords that are in most texts."""
_BEFORE, _BEHIND = 120, 1600
"""Characters before and behind a keyword in which a rule's match lies."""
_LONGEST_WORD = 24
_BODY = re.compile(r"[\w.~+=-]{10,400}")
_ISSUED = re.compile(r"[A-Za-z0-9]{10,400}")
_REST = re.compile(r"[ \t\"'\\,;)]{0,8}\r?\n")
_AFTER = re.compile(r"[ \t]{1,4}([A-Za-z0-9+/_=-]{4,400})(?![\w+/=-])")
_LONE = re.compile(r"[ \t]{0,80}([A-Za-z0-9+/_=.~-]{4,400})(?=[ \t,;)]{0,8}(?:\r?\n|\Z|\\?[\"']))")


class Rule(NamedTuple):
    """One of gitleaks' rules."""

    id: str
    keywords: tuple[str, ...]
    entropy: float
    group: int
    pattern: str


@functools.cache
def load_rules() -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    """Return gitleaks' rules and the prefixes of tokens, theirs and ours."""
    text = (importlib.resources.files(__package__) / "rules.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    rules = tuple(
        Rule(id, tuple(words), entropy, group, pattern)
        for id, words, entropy, group, pattern in data["rules"]
    )
    return rules, tuple(sorted({*data["prefixes"], *MORE_PREFIXES}))


@functools.cache
def _by_keyword() -> dict[str, tuple[Rule, ...]]:
    """Return the rules by the words, in small letters, of which a text must hold one."""
    found: dict[str, list[Rule]] = {}
    for rule in load_rules()[0]:
        for word in rule.keywords:
            found.setdefault(word, []).append(rule)
    return {word: tuple(rules) for word, rules in found.items()}


@functools.cache
def _gate() -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Return the shortest keywords and prefixes, which are in most texts, and a search for any of the others."""
    words = {*_by_keyword(), *(prefix.lower() for prefix in load_rules()[1])}
    tree: dict[str, Any] = {}
    for word in words:
        place = tree
        for letter in word if len(word) > _SHORT else "":
            place = place.setdefault(letter, {})
        place[""] = {}
    del tree[""]
    return tuple(sorted(word for word in words if len(word) <= _SHORT)), re.compile(_write_tree(tree))


def _write_tree(tree: dict[str, Any]) -> str:
    """Return a pattern for the words of a tree of letters: each letter of a text is looked at once or twice."""
    branches = [re.escape(letter) + _write_tree(rest) for letter, rest in sorted(tree.items()) if letter]
    if "" in tree or not branches:
        return ""
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


@functools.cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def find_tokens(text: str) -> Iterator[Span]:
    """Yield what looks like a token of a vendor."""
    lowered = text.lower()
    short, gate = _gate()
    if gate.search(lowered) is not None:
        yield from _find_known_shapes(text, lowered, _by_keyword(), load_rules()[1])
    elif any(word in lowered for word in short):
        rules = {word: rules for word, rules in _by_keyword().items() if len(word) <= _SHORT}
        yield from _find_known_shapes(text, lowered, rules, [p for p in load_rules()[1] if len(p) <= _SHORT])
    for mark, pattern in MORE_PATTERNS:
        if mark in text:
            for match in _compile(pattern).finditer(text):
                yield Span(*match.span())


def find_runs(text: str) -> Iterator[Span]:
    """Yield what looks like a long random text, without the words of a path around it."""
    for match in _RUN.finditer(text):
        start = match.start()
        for piece in _split_path(match[0]):
            if len(piece) >= _RANDOM and is_random(piece):
                yield Span(start, start + len(piece))
            start += len(piece) + 1


def _split_path(run: str) -> list[str]:
    """Return a run's pieces between slashes, those together that may be one text: base64 holds slashes too."""
    pieces: list[str] = []
    wordy = True
    for part in run.split("/"):
        is_word = len(part) > 2 and count_changes(part) < 0.25 * len(part)
        if pieces and not wordy and not is_word:
            pieces[-1] += f"/{part}"
        else:
            pieces.append(part)
        wordy = is_word
    return pieces


def _find_known_shapes(
    text: str, lowered: str, by_keyword: Mapping[str, tuple[Rule, ...]], prefixes: Iterable[str]
) -> Iterator[Span]:
    for word, rules in by_keyword.items():
        if word in lowered:
            windows = list(_find_windows(word, lowered))
            for rule in rules:
                for start, end in windows:
                    yield from _apply(rule, text, start, end)
    for prefix in prefixes:
        if prefix in text:
            yield from _find_prefixed(prefix, text)


def _find_windows(word: str, lowered: str) -> Iterator[tuple[int, int]]:
    """Yield the stretches around a keyword in which a rule may match."""
    place = lowered.find(word)
    while place >= 0:
        start, end = max(0, place - _BEFORE), place + _BEHIND
        last = lowered.rfind(word, place, end - _BEHIND // 2)
        end = max(end, last + _BEHIND // 2)
        yield start, end
        place = lowered.find(word, max(last, place) + 1)


def _apply(rule: Rule, text: str, start: int, end: int) -> Iterator[Span]:
    for match in _compile(rule.pattern).finditer(text, start, end):
        group = next((n for n in range(rule.group, len(match.groups()) + 1) if match[n]), 0)
        if not rule.entropy or _entropy(match[group]) >= rule.entropy:
            yield Span(*match.span(group))


def _find_prefixed(prefix: str, text: str) -> Iterator[Span]:
    """A token that is cut short, or longer than its rule says, is a secret still."""
    place = text.find(prefix)
    while place >= 0:
        body = _BODY.match(text, place + len(prefix)) if not place or not text[place - 1].isalnum() else None
        if body is not None and _looks_issued(body[0]):
            yield Span(place, body.end() - (len(body[0]) - len(body[0].rstrip("./-"))))
        place = text.find(prefix, place + len(prefix))


def _looks_issued(text: str) -> bool:
    """Whether one piece without separators is longer than words are, or mixes digits and letters."""
    return any(
        not piece.isdigit()
        and (
            len(piece) >= _LONGEST_WORD
            or (count_changes(piece) >= 3 and (len(piece) >= 16 or any(map(str.isdigit, piece))))
        )
        for piece in _ISSUED.findall(text)
    )


def _entropy(text: str) -> float:
    """Return Shannon's entropy in bits for each character, as gitleaks takes it."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in map(text.count, set(text)))


def count_changes(text: str) -> int:
    """Return how often a text changes between capitals, small letters, digits and others."""
    kinds = [0 if c.islower() else 1 if c.isupper() else 2 if c.isdigit() else 3 for c in text]
    return sum(first != second for first, second in itertools.pairwise(kinds))


def is_random(run: str) -> bool:
    """Whether a long run of characters is base64 of something, and no path, symbol, kernel or hash."""
    if run.startswith(("_Z", "ZN", "_R")):
        return False
    longest = max((match[0] for match in _SEGMENT.finditer(run)), key=len, default="")
    if len(longest) < _LONGEST_SEGMENT or not _is_mixed(longest):
        return False
    return run.startswith(_KEY_HEADS) or all(
        count_changes(each) >= _CHANGES * len(each) for each in (run, longest)
    )


def _is_mixed(text: str) -> bool:
    return any(map(str.islower, text)) and any(map(str.isupper, text)) and any(map(str.isdigit, text))


def find_keys(text: str) -> Iterator[Span]:
    """Yield private keys between their first and last line, or as far as they go."""
    if "PRIVATE KEY" not in text:
        return
    for match in _BEGIN.finditer(text):
        last = text.find(f"-----END {match[1]}-----", match.end(), match.end() + KEY_LONGEST)
        if last >= 0:
            yield Span(match.start(), last + len(match[1]) + 14)
        else:
            body = _KEY_BODY.match(text, match.end())
            yield Span(match.start(), body.end() if body else match.end())


def extend(text: str, spans: list[Span]) -> Iterator[Span]:
    """Yield spans, and what follows that is a further part of what one hides.

    That is a word that fills the next line, maybe behind what stood before the first part such as a launcher's prefix,
    and behind a long random text the next such word.
    """
    yield from spans
    done = 0
    for start, end, shown in spans:
        if start < done:
            continue
        line = text.rfind("\n", max(0, start - _BEFORE), start) + 1
        before = text[line:start] if line or start <= _BEFORE else ""
        position, first = end, start
        while (part := _find_next(text, first, position, before)) is not None:
            yield Span(*part, shown)
            first, done = part
            position = done


def _find_next(text: str, start: int, end: int, before: str) -> tuple[int, int] | None:
    broken = _REST.match(text, end)
    if broken is not None:
        begin = broken.end() + (len(before) if before and text.startswith(before, broken.end()) else 0)
        lone = _LONE.match(text, begin)
        return lone.span(1) if lone is not None and continues(lone[1]) else None
    after = _AFTER.match(text, end) if end - start >= _RANDOM else None
    if (
        after is None
        or not (after[1].endswith("=") or len(after[1]) >= _RANDOM // 2)
        or not continues(after[1])
    ):
        return None
    return after.span(1)


def continues(run: str) -> bool:
    """Whether a word that fills a line looks like part of a token, not like a name."""
    mixed = any(map(str.isdigit, run)) and any(map(str.isalpha, run))
    return run.endswith("=") or (mixed and count_changes(run) >= max(2, 0.3 * len(run)))
