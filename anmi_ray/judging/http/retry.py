"""Classify failed requests: retry, and when; give up on the question; or stop, because the user must act."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.http import completion, connections
from anmi_ray.judging.http.completion import TokenCounts

# Maximum time of a question with its retries, in timeouts of a request, excluding waits for rate limits.
TIMEOUTS = 5
_FIRST_WAIT_S = 1.0  # a mean of 0.5 s before the first retry, like the providers' own clients

OVERLOAD = (429, 503, 529)  # the server is overloaded; 529 is Anthropic's
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
NO_MAX_TOKENS = "max_tokens is called max_completion_tokens"  # OpenAI, since its models reason
LEARNED = (NO_SYSTEM_ROLE, NO_MAX_TOKENS)  # what a client adapts to
# not "billing", which Gemini's temporary 429 mentions
_NO_CREDIT = re.compile(r"insufficient_quota|credit balance", re.IGNORECASE)


@dataclass(frozen=True)
class Trouble:
    """A request without an answer.

    reason: short stable name.
    again: retry now.
    transient: retry in a later run.
    overload: the whole client should slow down.
    wait: seconds that the server asked for.
    tokens: what the server says it billed.
    perhaps_billed: the server may have billed it without saying so.
    sent: a request was sent.
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
    """Classify a status other than 200. `now`: Unix time in seconds.

    replied: this client has received an answer. answered: the judge has, perhaps in another process or run.
    Raises JudgeError for what retries cannot fix: key, model, address, credit.
    """
    code, message = completion.words(content)
    text = f"{code} {message}"
    if (_CONTEXT.search(text) and status in (400, 413, 422)) or status == 413:
        return Trouble("context length", again=False, transient=False, detail=message)
    if _FILTER.search(text) and status in (400, 403, 422, 451):
        return Trouble("refused: content filter", again=False, transient=False, detail=message)
    if _NO_SYSTEM_ROLE.search(message) and status in (400, 422, 500):
        return Trouble(NO_SYSTEM_ROLE, again=False, transient=True, detail=message)
    if "max_completion_tokens" in message and re.search(r"\bmax_tokens", message) and status in (400, 422):
        return Trouble(NO_MAX_TOKENS, again=False, transient=True, detail=message)
    _stop_if_hopeless(status, headers, text, message, config, replied or answered)
    if status in _AGAIN or status >= 500:
        wait = retry_after(headers, now)
        return Trouble(f"http {status}", True, True, overload=status in OVERLOAD, wait=wait, detail=message)
    # before the first answer the cause may be an unsupported setting: a later run asks again
    return Trouble(f"http {status}", again=False, transient=not replied or status == 403, detail=message)


def _stop_if_hopeless(
    status: int, headers: Mapping[str, str], text: str, message: str, config: ServerConfig, answered: bool
) -> None:
    status_is = remedy = ""
    if status == 401 or (status == 403 and not answered):  # later a 403 may be a firewall's rule about one text
        name = f"the key in {config.key_env}" if config.key_env else "a request without a key (key_env is null)"
        status_is = f"refuses {name}"
        remedy = "check key_env, its value, and the permissions of the key's owner"
    elif status == 402 or (status in (400, 429) and _NO_CREDIT.search(text)):
        status_is = "requires payment: no credit or quota left"
        remedy = "top up the account, then run again; earlier answers are kept"
    elif status == 404 or (status == 400 and _NO_MODEL.search(text)):
        status_is = f"has no model {config.model} at this address"
        remedy = "check model, and that base_url ends as in /v1"
    elif 300 <= status < 400:
        status_is = f"redirects{_redirect(headers)}"
        remedy = "give base_url the address that the server redirects to"
    if remedy:
        raise JudgeError(
            f"the server {status_is} (http {status}{': ' if message else ''}{message})",
            connections.place(config),
            remedy,
        )


def _redirect(headers: Mapping[str, str]) -> str:
    """Return a redirect's target without possible secrets. Redirects are not followed: the key would be sent there."""
    leads = headers.get("location", "").partition("?")[0].partition("#")[0]
    scheme, slashes, rest = leads.rpartition("://")
    host, slash, path = rest.partition("/")
    leads = completion.shown(f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}", 120)
    return f" to {leads}" if leads else ""


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that the server asks to wait, by retry-after-ms or Retry-After (seconds or date), or None.

    A date is compared with the server's own Date header, if any, so a wrong local clock does not matter.

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
    """Return seconds to wait after attempt k = 1, 2, …: full jitter, U(0, 1) · min(max_wait_s, 2^(k − 1)).

    A pure function of the question's `key` and the attempt (AWS Architecture Blog, "Exponential Backoff And Jitter").
    """
    bound = min(config.max_wait_s, _FIRST_WAIT_S * 2.0 ** min(attempt - 1, 60))
    return bound * float(identity.rng("backoff", key, attempt).random())
