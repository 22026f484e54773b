"""What must not be shown: keys that a process has read, secrets of its environment, credentials in addresses.

Whoever reads a key tells it here (`keep`), and what leaves a process as text (log lines, snapshots) passes `scrub`.
"""

from __future__ import annotations

import base64
import json
import os
import re
from urllib.parse import quote

SHORTEST = 8  # characters from which on a key is one: servers without keys are given "EMPTY", a word of honest answers
HIDDEN = "***"

# environment variables that hold secrets, by their names
NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_NO_SECRET = re.compile(r"_(PATH|FILE|DIR|MODE|PARALLELISM)$", re.IGNORECASE)  # though their names hold such a word
_USER = re.compile(r"(?<=://)[^\s/@\"']+:[^\s@\"']*@")
_OPTION = re.compile(r"(?<![A-Za-z])(access_key|secret_key|session_token)=[^&\s\"']+")
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
    return _OPTION.sub(rf"\1={HIDDEN}", _USER.sub(f"{HIDDEN}@", text))


def _of_environment() -> list[str]:
    return [value for name, value in os.environ.items() if NAMES.search(name) and not _NO_SECRET.search(name)]
