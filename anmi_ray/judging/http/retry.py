"""What a failed request means: try again, and when; give the question up; or stop, because the user has to act."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.http import access, completion
from anmi_ray.judging.http.completion import TokenCounts

# What a question may take with its retries, in time limits of a request; waiting for rate limits does not count.
TIMEOUTS = 5
_FIRST_WAIT_S = 1.0  # mean of .5 s before the first retry, as the providers' own clients wait

OVERLOAD = (429, 503, 529)  # the server asks everybody to slow down; 529 is Anthropic's
_AGAIN = (408, 409, 425, 429)  # and every 5xx
_CONTEXT = re.compile(
    r"context.?(length|window|size)|max_model_len|(prompt|input|request) (is )?too (long|large)"
    r"|too many (input )?tokens|token count.{0,40}exceeds|maximum (number of )?tokens",
    re.IGNORECASE,
)
_FILTER = re.compile(
    r"content.?(filter|policy|management)|ResponsibleAI|moderation|safety (filter|setting|system)|usage polic",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(r"model.?not.?found|model.{0,120}(does not exist|not found|not supported)", re.IGNORECASE)
# chat templates without a system role (Gemma, early Mistral), and services that disable it for some models
_NO_SYSTEM_ROLE = re.compile(
    r"(system|developer) (role|message|prompt|instruction)s?\b.{0,60}(\bnot\b|n't\b|unsupported|\bonly\b)"
    r"|not support.{0,40}\b(system|developer) (role|message|prompt|instruction)"
    r"|role\b.{0,100}\b(system|developer)\b|roles must alternate|only user and assistant roles",
    re.IGNORECASE,
)
NO_SYSTEM_ROLE = "no system role"
# not "billing": Gemini's passing 429 speaks of that too
_NO_CREDIT = re.compile(r"insufficient_quota|credit balance", re.IGNORECASE)


@dataclass(frozen=True)
class Trouble:
    """A request without an answer.

    `reason` is a short stable name; `again`: worth another attempt now; `transient`: worth one in a later run;
    `overload`: the whole client should slow down; `wait`: seconds the server asked for; `tokens`: what it says it
    billed; `perhaps_billed`: the server may have worked on it without saying so; `sent`: a request left at all.
    """

    reason: str
    again: bool
    transient: bool
    overload: bool = False
    wait: float | None = None
    tokens: TokenCounts | None = None
    perhaps_billed: bool = False
    sent: bool = True
    detail: str = ""


def of_status(
    status: int,
    headers: Mapping[str, str],
    content: bytes,
    config: ServerConfig,
    replied: bool,
    now: float,
    answered: bool = False,
) -> Trouble:
    """What a status other than 200 means. `now`: Unix time, seconds.

    `replied`: this client has had an answer; `answered`: the judge has had one, perhaps in another process or run.

    Raises JudgeError for what no retry can mend: key, model, address, credit.
    """
    code, message = completion.words(content)
    said = f"{code} {message}"
    if (_CONTEXT.search(said) and status in (400, 413, 422)) or status == 413:
        return Trouble("context length", again=False, transient=False, detail=message)
    if _FILTER.search(said) and status in (400, 403, 422, 451):
        return Trouble("refused: content filter", again=False, transient=False, detail=message)
    if _NO_SYSTEM_ROLE.search(message) and status in (400, 422, 500):
        return Trouble(NO_SYSTEM_ROLE, again=False, transient=True, detail=message)
    _stop_if_hopeless(status, headers, said, message, config, replied or answered)
    if status in _AGAIN or status >= 500:
        wait = retry_after(headers, now)
        return Trouble(f"http {status}", True, True, overload=status in OVERLOAD, wait=wait, detail=message)
    # before the first answer it may be a setting that the server does not know: a later run asks again
    return Trouble(f"http {status}", again=False, transient=not replied or status == 403, detail=message)


def _stop_if_hopeless(
    status: int, headers: Mapping[str, str], said: str, message: str, config: ServerConfig, answered: bool
) -> None:
    status_is = remedy = ""
    if status == 401 or (status == 403 and not answered):  # later a 403 may be a firewall that dislikes one text
        name = f"the key in {config.key_env}" if config.key_env else "a request without a key (key_env is null)"
        status_is = f"refuses {name}"
        remedy = "check key_env, what it holds, and the rights of the key's owner"
    elif status == 402 or (status in (400, 429) and _NO_CREDIT.search(said)):
        status_is = "wants to be paid first"
        remedy = "top up the account, then run again: what was answered is kept"
    elif status == 404 or (status == 400 and _NO_MODEL.search(said)):
        status_is = f"knows no model {config.model} there"
        remedy = "check model, and that base_url ends as in /v1"
    elif 300 <= status < 400:
        status_is = f"sends its callers elsewhere{_whither(headers)}"
        remedy = "give base_url the address that the server redirects to"
    if remedy:
        raise JudgeError(
            f"the server {status_is} (http {status}{': ' if message else ''}{message})", access.place(config), remedy
        )


def _whither(headers: Mapping[str, str]) -> str:
    """Where a redirect leads, without what may be a secret in it. Nobody follows it, least of all with the key."""
    leads = headers.get("location", "").partition("?")[0].partition("#")[0]
    scheme, slashes, rest = leads.rpartition("://")
    host, slash, path = rest.partition("/")
    leads = completion.shown(f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}", 120)
    return f", to {leads}" if leads else ""


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks to wait: retry-after-ms, or Retry-After in seconds or as a date; None: no word.

    A date counts from the server's own Date where it sends one, so a wrong clock does no harm.

    >>> retry_after({"retry-after": "Thu, 01 Jan 1970 00:01:30 GMT"}, now=60.0)
    30.0
    """
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name, "").strip()
        if re.fullmatch(r"\d{1,12}(\.\d{1,12})?", value):
            return float(value) * unit
    until = _timestamp(headers.get("retry-after", ""))
    if until is None:
        return None
    since = _timestamp(headers.get("date", ""))
    return max(0.0, until - (now if since is None else since))


def _timestamp(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def backoff(config: ServerConfig, key: str | bytes, attempt: int) -> float:
    """Seconds to wait after attempt k = 1, 2, …: full jitter, U(0, 1) · min(max_wait_s, _FIRST_WAIT_S · 2^(k − 1)).

    A pure function of the question's `key` and the attempt (AWS Architecture Blog, "Exponential Backoff And Jitter").
    """
    bound = min(config.max_wait_s, _FIRST_WAIT_S * 2.0 ** min(attempt - 1, 60))
    return bound * float(identity.rng("backoff", key, attempt).random())
