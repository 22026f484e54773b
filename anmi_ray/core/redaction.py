"""What must not be shown: keys that a process has read, secrets of its environment, credentials in addresses.

Whoever reads a key tells it here (`keep`), and what leaves a process as text (log lines, snapshots) passes `scrub`;
`shown` makes a line for a screen of a message, and `quoted` one of a value that a user gave. What is recorded is not
scrubbed: settings that carry a credential are refused, by what `in_address` and `in_value` find.
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
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[\w-]{8,}|A[KS]IA[0-9A-Z]{12,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_\w{16,}|github_pat_\w{16,}"
    r"|glpat-[\w-]{16,}|xox[abprs]-[\w-]{8,}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)"
    r"|(?<=Bearer )[^\s\"']{8,}|(?<=Basic )[A-Za-z0-9+/=]{8,}"
)
# a name may begin with sk- too: what settings are refused for is longer, and looks random
_SURELY = re.compile(
    _KEY.pattern.replace(r"sk-[\w-]{8,}", r"sk-(?:(?=\S{0,200}\d)(?=\S{0,200}[A-Z])\S{20}|[0-9a-f]{20})"),
)
_OPAQUE = re.compile(r"(?<![\w+/=.-])(?=[A-Za-z+/]*\d)[A-Za-z0-9+][A-Za-z0-9+/]{31,}={0,2}(?![\w+/.-])")
_known: set[str] = set()


def forms(value: str) -> tuple[str, ...]:
    """A secret as it is, and as JSON, a URL or base64 write it, the longest first; none of one too short to be one."""
    if len(value) < SHORTEST:
        return ()
    found = {value, json.dumps(value)[1:-1], quote(value, safe="")}
    found.add(base64.b64encode(value.encode()).rstrip(b"=").decode())
    return tuple(sorted(found, key=len, reverse=True))


def keep(value: str) -> tuple[str, ...]:
    """Its forms, none of which `scrub` lets through from now on, in this process."""
    found = forms(value)
    _known.update(found)
    return found


def scrub(text: str) -> str:
    """`text` with *** for what must not be shown.

    >>> scrub("s3://key:word@bucket/run?secret_key=word&region=eu")
    's3://***@bucket/run?secret_key=***&region=eu'
    """
    for form in sorted(_known.union(*map(forms, _of_environment())), key=len, reverse=True):
        text = text.replace(form, HIDDEN)
    return _KEY.sub(HIDDEN, _OPTION.sub(rf"\1={HIDDEN}", _USER.sub(_hide_user, text)))


def shown(text: str) -> str:
    r"""A message for a screen: scrubbed, and with escapes for what would move a terminal's cursor.

    >>> print(shown("no setting\x1b[2J\nremedy"))
    no setting\x1b[2J
    remedy
    """
    return visible(scrub(text))


def quoted(value: object, places: Iterable[str] = ()) -> str:
    """A value that a user gave, for a message: *** where it may be a credential, and no longer than 80 characters.

    `places`: the names of the settings that it stands in.

    >>> quoted("many"), quoted("sk-0123456789"), quoted("word", ["endpoint", "api_key"])
    ("'many'", "'***'", "'***'")
    """
    if any(map(is_secret_name, places)):
        return repr(HIDDEN)
    return shortened(repr(scrub_given(value) if isinstance(value, str) else value))


def scrub_given(text: str) -> str:
    """`scrub` for words that a user gave: long runs of letters and digits may be keys, where ours are fingerprints."""
    return _OPAQUE.sub(HIDDEN, scrub(text))


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


def is_key(value: str) -> bool:
    """Whether a text holds what must be a key, by how those of services begin."""
    return _SURELY.search(value) is not None


def in_address(address: str) -> str | None:
    """Which part of an address carries a credential, in words; None where none does, and for a local path.

    >>> in_address("s3://key:word@bucket/run"), in_address("https://host/data?token=abc")
    ('the user before the @', 'the option token')
    >>> in_address("s3://bucket/a@b?region=eu&endpoint_override=http://host:9000"), in_address("/data/me:word@home")
    (None, None)
    """
    scheme, sign, rest = _ONE_SLASH.sub(r"\1://", address).partition("://")
    if not sign or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return None
    if _has_user(scheme.lower(), rest) or _has_user(scheme.lower(), unquote(rest)):
        return "the user before the @"
    for option in re.split(r"[&;]", re.split(r"[?#;]", f"{rest};", maxsplit=1)[1]):
        name, _, value = option.partition("=")
        name, value = unquote(name), unquote(value)
        if value and (is_secret_name(name) or name.lower() in _IN_ADDRESS):
            return f"the option {shortened(name)}"
        if is_key(value) or ("@" in value and (in_address(value) or "://" not in value)):
            return f"the value of the option {shortened(name)}"
    return "a part of its path" if is_key(unquote(rest)) else None


def _has_user(scheme: str, rest: str) -> bool:
    """Whether a user with a password, or a key as user, stands before the host. A password may hold any character."""
    if scheme == "file" or rest.startswith("["):
        return False
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if at and (":" in user or scheme in ("http", "https", "s3", "s3a", "s3n", "ftp") or is_key(user)):
        return True
    before = rest.partition("?")[0] if not at else ""
    port = r"(?!\d+(?:/|$))" if not scheme.startswith("s3") else ""  # a bucket has none
    return re.match(rf"[^/@:]*:{port}.*@", before) is not None


def in_value(value: object, name: str = "") -> tuple[str, str] | None:
    """What in settings of any shape is a credential, by its name or its look: dotted name and value; None: nothing.

    >>> in_value({"headers": {"x-api-key": "abc"}}), in_value({"stop": ["sk-"], "max_tokens": 8, "token": None})
    (('headers.x-api-key', 'abc'), None)
    """
    if isinstance(value, str):
        last = next((part for part in reversed(name.split(".")) if not part.isdecimal()), "")
        is_credential = value and (is_secret_name(last) or is_key(value) or is_key(last) or in_address(value))
        return (name, value) if is_credential else None
    if isinstance(value, Mapping):
        inner = cast(Mapping[object, object], value).items()
    elif isinstance(value, list | tuple):
        inner = enumerate(cast(list[object], value))
    else:
        return None
    found = (in_value(one, f"{name}.{key}" if name else str(key)) for key, one in inner)
    return next((one for one in found if one is not None), None)


def _hide_user(found: re.Match[str]) -> str:
    return f"{found[1] or found[2]}{HIDDEN}@"


def _of_environment() -> list[str]:
    return [os.environ.get(name, "") for name in list(os.environ) if _holds_secret(name)]  # it may go meanwhile


@cache  # every line of a log asks
def _holds_secret(variable: str) -> bool:
    return NAMES.search(variable) is not None and _NO_SECRET.search(variable) is None
