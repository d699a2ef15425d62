"""Secrets in addresses: logins of URLs and connection strings, signed links, hooks, e-mail addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.gather.secrets.spans import Span

EMAIL = "<email>"
_LOGIN = re.compile(
    r"(?<![A-Za-z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]{0,30}://"
    r"(?P<login>[^\s/@'\"<>:?#]{0,128}:(?!\d{1,5}[/?#,]|\d{1,5}\b(?!@))[^\s'\"<>]{1,256}|[^\s/@'\"<>?#]{1,256})@(?=[\w\[*.%$({-])"
)
"""A password may hold ``@`` and ``/``: all up to the last ``@`` is the login, where its colon is no port's."""
_BARE_LOGIN = re.compile(
    r"(?<![\w/.:+@-])[A-Za-z_][\w.+-]{0,63}:(?P<login>[^\s:@/'\"<>=]{4,128})@(?!sha256\b)(?=tcp\(|unix\(|[\w-]{1,63}[.:/][\w./:-]|localhost)"
)
"""A login without a scheme, as in ``user:password@tcp(host:3306)/name``."""
_QUERY = re.compile(
    r"(?i)[?&;](?:amp;)?(?:sig|signature|x-(?:amz|goog|oss)-(?:signature|credential|security-token)|code|access_?token|auth|key|hmac|policy|sas|st|otp)=(?P<value>[^\s&;'\"<>#,)]{4,4000})"
)
_HOOK = re.compile(
    r"(?i)(?://hooks?\.[\w.-]{1,100}|/(?:api/)?webhooks?(?:b2)?|/bot(?=\d{5}))(?P<path>[/\w:@.~%-]{8,400})"
)
_EMAIL = re.compile(
    r"(?<![\w.+/:@-])(?P<local>[A-Za-z0-9_][\w.+-]{0,63})@(?P<domain>(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,6}[A-Za-z]{2,24})(?![\w(\[-]|\.\w|:\d)"
)
_SERVICES = frozenset({"git", "hg", "svn", "root", "rank", "job", "node", "worker"})
"""Accounts that are nobody's."""
_LOCAL = frozenset(
    "local internal lan cluster svc node intranet corp invalid py pt so sh t cc h cu yaml yml json cfg T "
    "mT view".split()
)
"""Last parts of host names inside a cluster, and of what a decorator or a product of tensors looks like."""


def find_addresses(text: str) -> Iterator[Span]:
    """Yield logins, signatures, hooks and e-mail addresses."""
    if "@" in text:
        if "://" in text:
            for match in _LOGIN.finditer(text):
                yield Span(*match.span("login"))
        for match in _BARE_LOGIN.finditer(text):
            yield Span(*match.span("login"))
        for match in _EMAIL.finditer(text):
            if match["local"] not in _SERVICES and match["domain"].rpartition(".")[2] not in _LOCAL:
                yield Span(match.start(), match.end(), EMAIL)
    if "=" in text:
        for match in _QUERY.finditer(text):
            if not match["value"].isdigit():
                yield Span(*match.span("value"))
    lowered = text.lower()
    if "hook" in lowered or "/bot" in lowered:
        for match in _HOOK.finditer(text):
            if any(map(str.isdigit, match["path"])) or "hooks." in match[0].lower():
                yield Span(*match.span("path"))
