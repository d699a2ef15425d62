"""Names of variables, options and fields that hold secrets.

Any word of a name counts, not only the last one: ``API_KEY_2``, ``DB_PASSWORD_PROD``. Training code is full of harmless
names of the same words, such as ``max_tokens``, ``eos_token``, ``key_padding_mask`` or ``token_embedding``.
"""

from __future__ import annotations

import functools
import re

STRONG = 2
"""Whatever stands after the name is a secret, unless it is a switch or empty."""
WEAK = 1
"""What stands after the name is a secret where it looks like one."""
NONE = 0


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
LONGEST = 100
"""Characters of a name that are looked at."""

_STEMS = re.compile(
    r"passw(?:or)?d|passphrase|passcode|sshpass|secret(?!ar)|credential|contrase[nñ]a|apikey|apitoken|authtoken|authkey"
    r"|accesstoken|accesskey|refreshtoken|idtoken|privatekey|secretkey|sessiontoken|sharedaccess|accountkey|jsonwebtoken"
    r"|bearer|authorization|cookie|connectionstring"
)
"""Parts of a name without its separators that mean a secret wherever they stand."""
_NO_SECRET = re.compile(r"passwordless|privatekeyless|bearerless|no(?:password|secrets?)$")
_BEFORE_PASS = _split("db user mysql pg smtp http https proxy redis root admin sudo sql ftp ldap mail sa")
_BEFORE_KEY = _split(
    "api access secret private auth encryption signing license account storage service app admin wandb comet openai "
    "anthropic azure aws ssh deploy subscription hf master shared consumer client"
)
_NOT_BEFORE_TOKEN = _split(
    "eos bos pad unk mask sep cls image audio video stop special start end begin class patch text num max per new next "
    "prev previous unexpected last first min avg total input output prompt target source decoder encoder word sub "
    "forced cur current each every vocab visual vision think tool generated sampled draft"
)
"""Words before ``token`` that speak of a tokenizer, a parser or a count, not of a credential."""
_QUALIFIERS = _split(
    "prod production dev development test testing stage staging live main backup old new env value read write rw ro "
    "admin user ci default primary secondary local remote internal external a b c x v string str header"
)
"""Words after ``token`` that say which one of several it is."""
_ABOUT = _split(
    "file files path paths dir directory folder len length min max size count counts num number policy "
    "url uri endpoint "
    "field fields format type kind ttl expiry expires expiration timeout prompt required enabled strength manager "
    "provider store backend embedding embeddings embed emb limit budget ratio name names version algorithm class"
)
"""Last words of names that say something about a secret and hold none: what follows is judged by its look."""
_COUNTING = _split(
    "num n max min total count has is use no enable disable require requires allow show with need needs"
)


@functools.lru_cache(maxsize=8192)
def rate_name(name: str) -> int:
    """Return `STRONG`, `WEAK` or `NONE`: how surely a variable, option or field of this name holds a secret."""
    words = [word.lower() for word in _WORDS.findall(name[-LONGEST:])]
    if not words:
        return NONE
    joined = "".join(words)
    named = [word for word in words if not word.isdigit()] or words
    if _NO_SECRET.search(joined):
        return NONE
    about = named[-1] in _ABOUT or named[0] in _COUNTING
    if _STEMS.search(joined):
        return WEAK if about else STRONG
    shouted = name.isupper()
    return max(_rate_word(words, place, shouted=shouted, about=about) for place in range(len(words)))


def _rate_word(words: list[str], place: int, *, shouted: bool, about: bool) -> int:
    word, before = words[place], words[place - 1] if place else ""
    after = words[place + 1 :]
    among = shouted and len(words) > 1
    if word in ("pass", "pwd", "pw", "passwd"):
        alone = len(words) == 1 and (word != "pass" or not shouted)
        return STRONG if (alone or before in _BEFORE_PASS or among) and not about else NONE
    if word == "token":
        if before in _NOT_BEFORE_TOKEN:
            return NONE
        chosen = all(each.isdigit() or each in _QUALIFIERS for each in after)
        return STRONG if (chosen or shouted) and not about else WEAK if not after or about else NONE
    if word in ("key", "keys"):
        if before in _BEFORE_KEY or among:
            return WEAK if about else STRONG
        return WEAK if not after else NONE
    if word in ("auth", "jwt", "otp", "creds", "cred", "passkey"):
        return STRONG if not after else WEAK
    if word == "pat":
        return STRONG if among and not about else NONE
    return (
        WEAK
        if word in ("tokens", "sig", "signature", "hmac", "session", "sessionid", "sid", "csrf", "dsn")
        else NONE
    )


def is_secret_name(name: str) -> bool:
    """Whether what stands after this name is a secret, e.g. ``--hf-token`` or ``API_KEY_2``."""
    return rate_name(name) == STRONG
