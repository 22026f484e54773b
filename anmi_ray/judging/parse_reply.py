"""Parse a judge's reply: a preference for the document shown first, or the reason for a failure.

Accepted replies: a value alone, a value after a label ("Answer: B"), a JSON object with one answer key, and, for
letters and words, a labeled last line after other text. Everything else is a failure, not a vote: in "(A) is worse
than (B)" or "0.7 in favour of document B" the words mean the opposite of the letter or number. A number next to other
text is never accepted, because judges mistake its sign more often than a letter.
The preference p in [0, 1] is (1 + s)/2 for a number s in [-1, 1]; for letters A is 1, B is 0 and T (a tie) is 1/2; for
yes and no it is 1 and 0. `preferences.vote` turns p into 0, 1/2 or 1.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Literal

from anmi_ray.judging.prompt import Form

Reason = Literal[
    "empty answer",
    "cut short",  # ends inside its reasoning, or max_tokens was reached
    "not a number",
    "outside [-1, 1]",
    "neither letter",
    "neither yes nor no",
    "several answers",
    "no letter among the tokens",
    "letters too improbable",
    "not log-probabilities",
]
RULES = "3"  # increment when replies are parsed differently: judgments are then recomputed from the logged answers
_MIN_MASS = 0.1  # minimum total probability of the letters; below it their ratio is noise
_COLUMNS = {
    "letters": {"log_first": "A", "log_second": "B", "log_tie": "T"},
    "yes-no": {"log_first": "yes", "log_second": "no"},
}
_SPACES = " \t\n\r▁ĠĊ"  # white space as text, and in SentencePiece and byte-level vocabularies
_POSITIONS = {"a": 1.0, "b": 0.0, "t": 0.5, "tie": 0.5, "draw": 0.5, "yes": 1.0, "no": 0.0}
_FAILURES: dict[str, Reason] = {
    "scale": "not a number",
    "letters": "neither letter",
    "yes-no": "neither yes nor no",
}

# Every repetition is bounded or anchored, so matching takes linear time.
_REASONING_TAG = r"(?:think|thinking|thought|reasoning)>"
_REASONING = re.compile(rf"\A.*</{_REASONING_TAG}", re.IGNORECASE | re.DOTALL)
_REASONING_START = re.compile(rf"<{_REASONING_TAG}", re.IGNORECASE)
_FENCE = re.compile(r"```(?:(?:json|text)?\s)?(.*)```", re.DOTALL | re.IGNORECASE)
_ONE_WORD = re.compile(r"[\s*_`\"'(\[]*[^\W\d_]+[\s*_`\"')\].!]*")
_MARKUP = str.maketrans({**dict.fromkeys("*`_$"), **dict.fromkeys("‐‑‒–—−", "-"), **dict.fromkeys("“”", '"')})
_KEY = r"(?:(?:my|the)\s)?(?:final\s)?(?:answer|score|rating|preference|verdict|winner|relevant|better(?:\sdocument)?)"
_REASON_KEY = r"reason(?:ing)?|explanation|rationale|confidence"
_VALUES = {
    "scale": r"[-+]?(?:[0-9]{1,30}\.[0-9]{1,40}|0,[0-9]{1,40}|\.[0-9]{1,40}|[0-9]{1,30}(?![.,]))",
    "letters": r"(?:(?:the\s)?(?:document|option)\s)?\(?(?:[ABT]|(?:a\s)?(?:tie|draw))",
    "yes-no": r"yes|no",
}
_PATTERN = {
    form: re.compile(
        rf"(?P<label>{_KEY}\s?(?:[:=]|is\b:?))?\s{{0,4}}[\"'(\[]{{0,3}}(?P<value>{value})[\"')\]]{{0,3}}\.?",
        re.IGNORECASE,
    )
    for form, value in _VALUES.items()
}


def read(answer: str, form: Form) -> float | Reason:
    """Return the preference for the document shown first, from a reply to a template of this form.

    >>> read("Score: −0.5", "scale"), read("0.7 (B)", "scale")
    (0.25, 'not a number')
    >>> read("Answer: **B**.", "letters"), read("A is worse", "letters"), read("Yes.", "yes-no")
    (0.0, 'neither letter', 1.0)
    """
    if not answer.strip():
        return "empty answer"
    text = _body(answer)
    if not text or _REASONING_START.search(text):
        return "cut short"
    if (pairs := _json_pairs(text)) is not None:
        return _read_json(pairs, form)
    text = unicodedata.normalize("NFKC", text).translate(_MARKUP).strip()
    pattern = _PATTERN[form]
    if match := pattern.fullmatch(text):
        return _position(match["value"], form)
    *before, last = [pattern.fullmatch(line.strip()) for line in text.splitlines()] or [None]
    if form == "scale" or last is None or last["label"] is None:
        return _FAILURES[form]
    return "several answers" if any(before) else _position(last["value"], form)


def without_reasoning(answer: str) -> str:
    """Return the part of an answer after its last closing reasoning tag, such as </think>."""
    return _REASONING.sub("", answer)


def text_columns(text: str, cut: bool) -> dict[str, str]:
    """Return the Answer columns of a reply: text, or error. cut: max_tokens was reached.

    A reply that was cut counts only if it is a single word or a whole JSON object, since numbers and sentences may be
    incomplete.

    >>> text_columns("**A**", cut=True), text_columns("-0", cut=True)
    ({'text': '**A**'}, {'error': 'cut short'})
    """
    if not text.strip():
        return {"error": "empty answer"}
    body = _body(text)
    whole = not cut or _ONE_WORD.fullmatch(body) or _json_pairs(body) is not None
    return {"text": text} if whole else {"error": "cut short"}


def letter_columns(logprobs: Mapping[str, float], form: Form = "letters") -> dict[str, float | str]:
    """Return the Answer columns of first-token log-probabilities: log_first, log_second, log_tie, or error.

    The probability of a letter is the sum over its tokens with and without white space before it, as text or as
    vocabularies encode it ("A", " A", "ĠA", "▁A"). Lower-case letters do not count: "a" begins sentences. For form
    yes-no, the words yes and no count in any case, and there is no tie. A letter that is not among the tokens has
    probability 0, so pass as many tokens as the engine returns. The total must be at least 0.1, which accepts
    constrained answers except those that the model never considered.

    >>> letter_columns({"A": -0.1, "B": -3.0})["log_second"], letter_columns({"Hi": -0.1})
    (-3.0, {'error': 'no letter among the tokens'})
    """
    columns = _COLUMNS[form]
    mass = dict.fromkeys(columns.values(), 0.0)
    found = False
    for token, logprob in logprobs.items():
        if math.isnan(logprob) or logprob > 1e-3:
            return {"error": "not log-probabilities"}
        letter = token.strip(_SPACES) if form == "letters" else token.strip(_SPACES).lower()
        if letter in mass:
            found = True
            mass[letter] += math.exp(logprob)
    if not found:
        return {"error": "no letter among the tokens" if logprobs else "empty answer"}
    total = math.fsum(mass.values())
    if not _MIN_MASS <= total <= 1.01:
        return {"error": "not log-probabilities" if total > 1 else "letters too improbable"}
    return {name: math.log(mass[letter] + 1e-300) for name, letter in columns.items()}


def _body(answer: str) -> str:
    """Return an answer without its reasoning and without a code fence around it."""
    text = without_reasoning(answer).strip()
    fence = _FENCE.fullmatch(text)
    return fence[1].strip() if fence else text


def _json_pairs(text: str) -> tuple[tuple[str, object], ...] | None:
    """Return the keys and values of a JSON object, including repeated keys; None for other texts."""
    try:
        content = json.loads(text, object_pairs_hook=tuple) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, tuple) else None


def _read_json(pairs: tuple[tuple[str, object], ...], form: Form) -> float | Reason:
    """Return the value of the only answer key; except for numbers, a reason may be given in addition."""
    names = [key.replace("_", " ").lower() for key, _ in pairs]
    values = [value for name, (_, value) in zip(names, pairs, strict=True) if re.fullmatch(_KEY, name)]
    reasons = 0 if form == "scale" else sum(re.fullmatch(_REASON_KEY, name) is not None for name in names)
    if len(values) != 1 or len(values) + reasons < len(pairs):
        return "several answers" if len(values) > 1 else _FAILURES[form]
    value = values[0]
    if isinstance(value, bool):
        return float(value) if form == "yes-no" else _FAILURES[form]
    if isinstance(value, int | float) and form == "scale":
        return _position(repr(value), form)
    match = _PATTERN[form].fullmatch(value) if isinstance(value, str) else None
    return _position(match["value"], form) if match else _FAILURES[form]


def _position(value: str, form: Form) -> float | Reason:
    """Return the preference that a matched number, letter or word expresses."""
    if form != "scale":
        return _POSITIONS[re.split(r"[\s(]", value.lower())[-1]]
    number = float(value.replace(",", "."))
    if math.isnan(number):
        return "not a number"
    return (1.0 + number) / 2.0 if -1.0 <= number <= 1.0 else "outside [-1, 1]"
