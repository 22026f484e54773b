"""Credentials: what is refused in settings, by its name, and what is replaced by *** in text that leaves a process.

`keep` registers the value of a key that was read; `scrub` hides it, secrets of the environment, users in addresses, and
values of options named like secrets. No value is taken for a key by its shape.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import cast
from urllib.parse import quote, unquote

from anmi_ray.core.errors import visible

SHORTEST = 8  # characters from which on a key is one: servers without keys are given "EMPTY", a word of honest answers
HIDDEN = "***"
LONGEST = 80  # characters of a value that a message quotes

# environment variables that hold secrets, by their names
NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_NO_SECRET = re.compile(r"_(PATH|FILE|DIR|MODE|PARALLELISM)$", re.IGNORECASE)  # though their names hold such a word

# how a setting, a header or an option of an address that holds a secret is called, its words joined by _
_WORDS = (
    r"(?:(?:api|access|secret|private|auth|account|subscription|license|session|security|shared|master|encryption)_?"
    r"(?:access_?)?key(?:_?id)?|token|secret|passw(?:or)?d|passphrase|pwd|credentials?|authori[sz]ation|auth|bearer"
    r"|cookie|signature)"
)
_NAME = re.compile(rf"(?:^|.*_){_WORDS}|.*(?:apikey|secretkey|accesskey|[a-z]token|password)")
_OF_TEXT = re.compile(  # tokens that a model reads
    r"(?:.*_)?(?:pad|eos|bos|sep|cls|unk|mask|stop|start|end|image|video|audio|special|next|first|last|tool\w*)_?token"
)
_IN_ADDRESS = frozenset({"key", "sig", "code"})  # what secrets are called in an address besides
_USER = re.compile(r"(:/{1,2})[^\s/@\"']{0,400}?:[^\s\"']{0,1000}@|((?:https?|s3)://?)[^\s/@:\"']{1,400}@")
_ONE_SLASH = re.compile(r"^(s3[an]?|gc?s|abfss?|hdfs|https?|ftp):/(?!/)", re.IGNORECASE)  # an address, mistyped
_OPTION = re.compile(
    rf"(?<![A-Za-z])((?:[A-Za-z]+[_-]){{0,4}}?{_WORDS.replace('_?', '[_-]?')})=[^&\s\"',}}]+", re.IGNORECASE
)
_known: set[str] = set()


def forms(value: str) -> tuple[str, ...]:
    """A secret as it is, and as JSON, a URL or base64 write it, the longest first; none of one too short to be one."""
    if len(value) < SHORTEST:
        return ()
    spellings = {value, json.dumps(value)[1:-1], quote(value, safe="")}
    spellings.add(base64.b64encode(value.encode()).rstrip(b"=").decode())
    return tuple(sorted(spellings, key=len, reverse=True))


def keep(value: str) -> tuple[str, ...]:
    """Its forms, none of which `scrub` lets through from now on, in this process."""
    spellings = forms(value)
    _known.update(spellings)
    return spellings


def scrub(text: str) -> str:
    """`text` with *** for what must not be shown.

    >>> scrub("s3://key:word@bucket/run?secret_key=word&region=eu")
    's3://***@bucket/run?secret_key=***&region=eu'
    """
    secrets = [os.environ.get(name, "") for name in list(os.environ) if _holds_secret(name)]  # one may go meanwhile
    for form in sorted(_known.union(*map(forms, secrets)), key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    text = _USER.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}@", text)
    return _OPTION.sub(rf"\1={HIDDEN}", text)


def shown(text: str) -> str:
    r"""A message for a screen: scrubbed, and with escapes for what would move a terminal's cursor.

    >>> print(shown("no setting\x1b[2J\nremedy"))
    no setting\x1b[2J
    remedy
    """
    return visible(scrub(text))


def quoted(value: object, places: Iterable[str] = ()) -> str:
    """A value that a user gave, for a message: *** where a name in `places` says that it is a secret, and shortened.

    >>> quoted("many"), quoted("word", ["endpoint", "api_key"])
    ("'many'", "'***'")
    """
    if any(map(is_secret_name, places)):
        return repr(HIDDEN)
    return shortened(repr(scrub(value) if isinstance(value, str) else value))


def shortened(text: str, longest: int = LONGEST) -> str:
    """`text` without its middle where it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 20]} … {text[-17:]}"


def is_secret_name(name: str) -> bool:
    """Whether a setting, a header or an option of this name holds a secret.

    >>> [name for name in ("x-api-key", "apiKey", "max_tokens", "key_env", "eos_token") if is_secret_name(name)]
    ['x-api-key', 'apiKey']
    """
    words = re.sub(r"[^A-Za-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).lower().strip("_")
    if name.isupper() and words.endswith("_key"):  # of an environment variable
        return True
    return _NAME.fullmatch(words) is not None and _OF_TEXT.fullmatch(words) is None


def in_address(address: str) -> str | None:
    """Which part of an address carries a credential, in words; None where none does, and for a local path.

    >>> in_address("s3://key:word@bucket/run"), in_address("https://host/data?token=abc")
    ('the user before the @', 'the option token')
    >>> in_address("s3://bucket/a@b?region=eu&endpoint_override=http://host:9000"), in_address("/data/me:word@home")
    (None, None)
    """
    scheme, sign, rest = _ONE_SLASH.sub(r"\1://", address).partition("://")
    scheme = scheme.lower()
    if not sign or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme):
        return None
    if _has_user(scheme, rest) or _has_user(scheme, unquote(rest)):
        return "the user before the @"
    for option in re.split(r"[?#;&]", rest)[1:]:
        name, _, value = option.partition("=")
        name, value = unquote(name), unquote(value)
        if value and (is_secret_name(name) or name.lower() in _IN_ADDRESS):
            return f"the option {shortened(name)}"
        if "@" in value and (in_address(value) or "://" not in value):
            return f"the value of the option {shortened(name)}"
    return None


def _has_user(scheme: str, rest: str) -> bool:
    """Whether a user with a password, or a key as user, precedes the host. A password may hold any character."""
    if scheme == "file" or rest.startswith("["):
        return False
    user, at, _ = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")
    if at and (":" in user or scheme in ("http", "https", "s3", "s3a", "s3n", "ftp")):
        return True
    before = rest.partition("?")[0] if not at else ""
    port = r"(?!\d+(?:/|$))" if not scheme.startswith("s3") else ""  # a bucket has none
    return re.match(rf"[^/@:]*:{port}.*@", before) is not None


def in_value(value: object, name: str = "") -> tuple[str, str] | None:
    """The dotted name and value of a credential in settings: text under a name of secrets, or such an address.

    >>> in_value({"headers": {"x-api-key": "abc"}}), in_value({"stop": ["sk-"], "max_tokens": 8, "token": None})
    (('headers.x-api-key', 'abc'), None)
    """
    if isinstance(value, str):
        last = next((part for part in reversed(name.split(".")) if not part.isdecimal()), "")
        return (name, value) if value and (is_secret_name(last) or in_address(value)) else None
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        inner = cast(Mapping[object, object], value).items()
    elif isinstance(value, list | tuple):
        inner = enumerate(cast(list[object], value))
    credentials = (in_value(member, f"{name}.{key}" if name else str(key)) for key, member in inner)
    return next((member for member in credentials if member is not None), None)


@cache  # every line of a log asks
def _holds_secret(variable: str) -> bool:
    return NAMES.search(variable) is not None and _NO_SECRET.search(variable) is None
