"""Taking secrets, user names and home directories out of texts before they are kept.

Better one word too many hidden than one secret shown, but a diagnosis lives on its paths, ports, hashes and
numbers: those stay. Training command lines are full of harmless words such as ``--max-tokens`` or
``--eos-token``, so the names that mark a secret are matched as whole words at the end of an option.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from collections.abc import Sequence

HIDDEN = "***"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Prefixes that vendors publish so that scanners can find leaked tokens:
# github.blog "Behind GitHub's new authentication token formats", huggingface.co/docs/hub/security-tokens,
# docs.gitlab.com token prefixes, docs.aws.amazon.com IAM unique ids, api.slack.com token types,
# cloud.google.com API keys, RFC 7519 (a JWT starts with base64 of '{"').
_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{20,} | hf_[A-Za-z0-9]{16,} | api_org_[A-Za-z0-9]{16,}
    | sk-[A-Za-z0-9_-]{16,} | (?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z]) | gl(?:pat|dt|rt|cbt|ptt|ft)-[\w-]{16,}
    | xox[abeoprs]-[\w-]{8,} | xapp-[\w-]{8,} | AIza[\w-]{30,} | ya29\.[\w.-]{16,}
    | npm_[A-Za-z0-9]{30,} | pypi-[\w-]{40,} | dckr_pat_[\w-]{16,} | nvapi-[\w-]{16,} | gsk_[A-Za-z0-9]{20,}
    | wandb_v1_\w{16,} | eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?
    )""",
    re.VERBOSE,
)
_PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL)
_URL_LOGIN = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]{0,30}://)[^\s/@'\"]+@")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization|x-api-key|(?:set-)?cookie|x-auth-token)(\s*[:=]\s*)[^\r\n'\"]+"
)
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+)(?=[^\s'\"]*[\d+/=._-])[A-Za-z0-9+/=._~-]{8,}", re.IGNORECASE)
_SLACK_HOOK = re.compile(r"(hooks\.slack\.com/services/)[\w/-]+")
_KEYED_HEX = re.compile(
    r"(?i)((?:wandb|api|login|key|token)[^\n0-9a-f]{0,3}[^\n]{0,24}?\b)[0-9a-f]{40}\b(?![\w.])"
)
"""Weights & Biases keys have no prefix: 40 hex digits, as a git commit has. Only a word before tells them."""

_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s,;&'"})]+)"""
_NAMED = re.compile(
    r"""(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]{0,63})(?P<gap>['"]?\s?=\s?|['"]?\s?:\s+|['"]\s?:)"""
)
_GIVEN = re.compile(_VALUE)
_OPTION = re.compile(rf"(?<!\S)(?P<name>--?[A-Za-z_][\w.-]{{0,63}})(?P<gap>\s+)(?P<value>(?!-){_VALUE})")
_PLAIN_VALUE = re.compile(r"(?i)true|false|none|null|yes|no|\d{1,6}|\*\*\*")
"""What a switch or a count looks like: after ``token=`` it is no secret."""

_SECRET_LAST = _words(
    "password passwords passwd passphrase secret secrets credential credentials signature cookie auth apikey "
    "authtoken accesskey secretkey accesstoken"
)
_BEFORE_PASS = _words("db user mysql pg smtp http https proxy redis root admin sudo sql ftp ldap mail")
_BEFORE_KEY = _words(
    "api access secret private auth encryption signing license account storage service app admin wandb comet "
    "openai anthropic azure aws ssh deploy subscription hf"
)
_NOT_BEFORE_TOKEN = _words(
    "eos bos pad unk mask sep cls image audio video stop special start end begin class patch text num max "
    "per new next prev previous unexpected last first"
)
"""Words before ``token`` that speak of a tokenizer, a parser or a count, not of a credential."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LOGIN_PAIR = re.compile(r"(?<!\S)(-u|--user|--proxy-user)([ =])[^\s:]+:\S+")

_END = r"(?=[/\s:;,'\"\])}>]|$)"
_HOMES = re.compile(
    rf"(?<![\w/.~-])(?:(?:/[\w.-]+){{0,3}}?/(?:home|Users)/(?!linuxbrew/)[^/\s:;,'\"\])}}>]+|/root|/var/root){_END}"
)
_TILDE = re.compile(rf"(?<![\w/.~-])~[a-z_][\w.-]*{_END}")
_SHARED_NAMES = _words("root user admin ubuntu nobody daemon runner work app data home test debian ec2-user")
"""Accounts that many machines have: hiding them would tear holes into ordinary paths."""


def scrub(text: str) -> str:
    """Return ``text`` without secrets, user names and home directories.

    Tokens, keys, passwords and URL credentials become ``***``, home directories ``~``, the user's name in a
    path or before an ``@`` ``<user>``. Git hashes, ports, numbers and other paths stay.
    """
    if not text:
        return text
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _URL_LOGIN.sub(rf"\1{HIDDEN}@", text)
    text = _SLACK_HOOK.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    text = _SHAPES.sub(HIDDEN, text)
    text = _LOGIN_PAIR.sub(rf"\1\2{HIDDEN}", text)
    text = _OPTION.sub(_hide_value, _hide_assigned(text))
    text = _KEYED_HEX.sub(rf"\1{HIDDEN}", text)
    return scrub_paths(text)


def scrub_paths(text: str) -> str:
    """Return ``text`` with home directories as ``~`` and the user's name hidden; nothing else is touched."""
    home, name = _owner(os.environ.get("HOME"), os.environ.get("USER") or os.environ.get("LOGNAME"))
    if home is not None:
        text = home.sub("~", text)
    text = _TILDE.sub("~", _HOMES.sub("~", text))
    return name.sub("<user>", text) if name is not None else text


def scrub_argv(arguments: Sequence[str]) -> list[str]:
    """Return a command line, one element per argument, scrubbed.

    The argument after an option such as ``--password`` is hidden whole, whatever it contains.
    """
    scrubbed: list[str] = []
    hide = False
    for argument in arguments:
        scrubbed.append(HIDDEN if hide and not argument.startswith("-") else scrub(argument))
        hide = argument.startswith("-") and is_secret_name(argument)
    return scrubbed


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable, option or field of this name holds a secret, e.g. ``--hf-token`` or ``API_KEY``."""
    words = _WORDS.findall(name)
    if not words:
        return False
    last, before = words[-1].lower(), words[-2].lower() if len(words) > 1 else ""
    if last in _SECRET_LAST:
        return True
    shouted = bool(before) and name.isupper()
    if last in ("pass", "pwd"):
        return before in _BEFORE_PASS or shouted or name.lstrip("-") == "pass"
    if last == "token":
        return before not in _NOT_BEFORE_TOKEN
    if last in ("key", "keys"):
        return before in _BEFORE_KEY or shouted
    return last == "pat" and shouted


def _hide_value(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or _PLAIN_VALUE.fullmatch(match["value"]):
        return match[0]
    return f"{match['name']}{match['gap']}{HIDDEN}"


def _hide_assigned(text: str) -> str:
    """Hide the values of secrets' names; one may also stand in the value of another name, such as an exception's."""
    parts, done = [], 0
    for match in _NAMED.finditer(text):
        if match.start() < done or not is_secret_name(match["name"]):
            continue
        value = _GIVEN.match(text, match.end())
        if value is not None and not _PLAIN_VALUE.fullmatch(value[0]):
            parts += [text[done : match.end()], HIDDEN]
            done = value.end()
    return "".join([*parts, text[done:]])


@functools.lru_cache(maxsize=16)
def _owner(home: str | None, name: str | None) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """Return the patterns for this process's own home directory and user name."""
    if name is None:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except (KeyError, OSError):
            name = None
    own_home = None
    if home and home.startswith("/") and len(home.rstrip("/")) > 1:
        own_home = re.compile(rf"(?<![\w/.~-]){re.escape(home.rstrip('/'))}{_END}")
    own_name = None
    if name and len(name) >= 3 and name not in _SHARED_NAMES:
        own_name = re.compile(rf"(?<=/){re.escape(name)}{_END}|(?<![\w.-]){re.escape(name)}(?=@)")
    return own_home, own_name
