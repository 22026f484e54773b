"""Read a judge's reply: a preference for the document shown first, or the reason why there is none.

Only a closed set of replies is read: a value alone, a value after a label ("Answer: B"), a JSON object with one such
key, and, for letters and words, a last line "Answer: B" after other text. Anything else is a failure, never a vote: in
"(A) is worse than (B)" or "0.7 in favour of document B" the words mean the opposite of the letter or number. A number
with other text is never read, because judges mistake its sign more easily than a letter.
The preference p in [0, 1] is (1 + s)/2 of a number s in [-1, 1]; for letters A is 1, B 0 and T (a tie) 1/2; for yes and
no it is 1 and 0. `preferences.vote` turns p into 0, 1/2 or 1.
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
RULES = "2"  # raise it when a reply is read differently: judgments are then made anew from the stored answers
_LEAST_MASS = 0.1  # below it the model was about to say something else, and the letters' ratio is its noise
_COLUMNS = {
    "letters": {"log_first": "A", "log_second": "B", "log_tie": "T"},
    "yes-no": {"log_first": "yes", "log_second": "no"},
}
_SPACES = " \t\n\r▁ĠĊ"  # as text, and as the marks of SentencePiece and byte-level vocabularies

# Every repetition is bounded or anchored to a line, so matching takes linear time.
_REASONING_TAG = r"(?:think|thinking|thought|reasoning)>"
_REASONING = re.compile(rf"\A.*</{_REASONING_TAG}", re.IGNORECASE | re.DOTALL)
_REASONING_START = re.compile(rf"<{_REASONING_TAG}", re.IGNORECASE)
_AROUND = re.compile(r"```(?:(?:json|text)?\s)?(.*)```|<answer>(.*)</answer>", re.DOTALL | re.IGNORECASE)
_ONE_WORD = re.compile(r"[\s*_`\"'(\[]*[^\W\d_]+[\s*_`\"')\].!]*")
_MARKUP = re.compile(r"[*`_$]|^#{1,6}\s", re.MULTILINE)
_DASHES = dict.fromkeys(map(ord, "‐‑‒–—−"), "-")

_NAME = r"(?:answer|score|rating|preference|verdict|choice|decision|judge?ment|winner|better(?:\sdocument)?|relevant)"
_LABEL = rf"(?:(?:my|the)\s)?(?:final\s)?{_NAME}"
_KEY = re.compile(_LABEL, re.IGNORECASE)
_REASON_KEY = re.compile(
    r"reason(?:ing|s)?|explanation|rationale|thoughts?|analysis|justification|confidence", re.IGNORECASE
)
_OPEN = r"\s{0,4}(?:\\boxed)?[\"'(\[{]{0,3}\s{0,4}"
_CLOSE = r"[\"')\]}]{0,3}\.?[\"')\]}]{0,3}\s{0,4}"
_VALUES = {
    "scale": r"([-+]?(?:[0-9]{1,30}\.[0-9]{1,40}|0,[0-9]{1,40}|\.[0-9]{1,40}|[0-9]{1,30}(?![.,])))",
    "letters": rf"(?:(?:the\s)?(?:document|doc|option|passage|text)\s{_OPEN})?([ABT]|(?:a\s)?(?:tie|draw))",
    "yes-no": r"(yes|no)",
}
_POSITIONS = {"a": 1.0, "b": 0.0, "t": 0.5, "tie": 0.5, "draw": 0.5, "yes": 1.0, "no": 0.0}
_WHOLE = {
    form: re.compile(rf"(?:{_LABEL}\s?(?:[:=]|is\b:?))?{_OPEN}{value}{_CLOSE}", re.IGNORECASE)
    for form, value in _VALUES.items()
}
_LAST_LABEL = rf"(?:(?:my|the)\s)?(?:final\s{_NAME}|answer)"
_LAST_LINE = {
    form: re.compile(rf"^{_LAST_LABEL}\s?(?:[:=]|is\b:?){_OPEN}{value}{_CLOSE}$", re.IGNORECASE | re.MULTILINE)
    for form, value in _VALUES.items()
    if form != "scale"
}
_FAILURES: dict[str, Reason] = {
    "scale": "not a number",
    "letters": "neither letter",
    "yes-no": "neither yes nor no",
}


def read(answer: str, form: Form) -> float | Reason:
    """Preference for the document shown first, from a reply to a template of this form."""
    return {"scale": read_scale, "letters": read_letter, "yes-no": read_word}[form](answer)


def read_scale(answer: str) -> float | Reason:
    """Preference for the document shown first, from a number s in [-1, 1]: (1 + s)/2.

    >>> read_scale("Score: −0.5"), read_scale("0.7 (B)")
    (0.25, 'not a number')
    """
    return _read(answer, "scale")


def read_letter(answer: str) -> float | Reason:
    """Preference for the document shown first, from a letter: A is 1, B is 0, T or "tie" is 1/2.

    >>> read_letter("Answer: **B**."), read_letter("A is worse")
    (0.0, 'neither letter')
    """
    return _read(answer, "letters")


def read_word(answer: str) -> float | Reason:
    """Probability that the document answers the query, from a word: yes is 1, no is 0.

    >>> read_word("Yes."), read_word("Yes and no")
    (1.0, 'neither yes nor no')
    """
    return _read(answer, "yes-no")


def _read(answer: str, form: Form) -> float | Reason:
    if not answer.strip():
        return "empty answer"
    text = _body(answer)
    if not text or _REASONING_START.search(text):
        return "cut short"
    if (pairs := _json_pairs(text)) is not None:
        return _read_json(pairs, form)
    text = unicodedata.normalize("NFKC", text).translate(_DASHES)
    text = _MARKUP.sub("", text).replace("“", '"').replace("”", '"').strip()
    if whole := _WHOLE[form].fullmatch(text):
        return _position(whole[1], form)
    lines = list(_LAST_LINE[form].finditer(text)) if form in _LAST_LINE else []
    if len(lines) > 1:
        return "several answers"
    return _position(lines[0][1], form) if lines and lines[0].end() == len(text) else _FAILURES[form]


def without_reasoning(answer: str) -> str:
    """The part of an answer after its last closing tag of reasoning, such as </think>."""
    return _REASONING.sub("", answer)


def text_columns(text: str, cut: bool) -> dict[str, str]:
    """The columns of an Answer row that words fill: text, or error. cut: max_tokens was reached.

    An answer that was cut counts only if it is a single word or a whole JSON object: a number or a sentence may go on.

    >>> text_columns("**A**", cut=True), text_columns("-0", cut=True)
    ({'text': '**A**'}, {'error': 'cut short'})
    """
    if not text.strip():
        return {"error": "empty answer"}
    body = _body(text)
    whole = not cut or _ONE_WORD.fullmatch(body) or _json_pairs(body) is not None
    return {"text": text} if whole else {"error": "cut short"}


def letter_columns(logprobs: Mapping[str, float], form: Form = "letters") -> dict[str, float | str]:
    """The columns of an Answer row that first-token log-probabilities fill: log_first, log_second, log_tie, or error.

    A letter's probability is summed over its token with and without white space before it, as text or as vocabularies
    write it ("A", " A", "ĠA", "▁A"). Lower case does not count: "a" begins sentences. Of form yes-no these are the
    words yes and no in any case, and there is no tie. A letter that is not among the
    tokens has probability 0, so give as many as the engine will. Together the three must have at least 0.1, which
    lets pass what a constrained answer is forced into, but not what it never considered.

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
    if not _LEAST_MASS <= total <= 1.01:
        return {"error": "not log-probabilities" if total > 1 else "letters too improbable"}
    return {name: math.log(mass[letter] + 1e-300) for name, letter in columns.items()}


def _body(answer: str) -> str:
    """An answer without its reasoning and without a code block or <answer> around it."""
    text = without_reasoning(answer).strip()
    around = _AROUND.fullmatch(text)
    return (around[1] or around[2] or "").strip() if around else text


def _json_pairs(text: str) -> tuple[tuple[str, object], ...] | None:
    """Keys and values of a JSON object, repeated keys included; None for other texts."""
    try:
        content = json.loads(text, object_pairs_hook=tuple) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, tuple) else None


def _read_json(pairs: tuple[tuple[str, object], ...], form: Form) -> float | Reason:
    """The value under the only key that names an answer; except for numbers, a reason may stand next to it."""
    values = [value for key, value in pairs if _KEY.fullmatch(key.replace("_", " "))]
    others = len(pairs) - len(values)
    if form != "scale":
        others -= sum(_REASON_KEY.fullmatch(key) is not None for key, _ in pairs)
    if len(values) != 1 or others:
        return "several answers" if len(values) > 1 else _FAILURES[form]
    value = values[0]
    if isinstance(value, bool):
        return float(value) if form == "yes-no" else _FAILURES[form]
    if isinstance(value, int | float) and form == "scale":
        return _position(repr(value), form)
    whole = _WHOLE[form].fullmatch(value) if isinstance(value, str) else None
    return _position(whole[1], form) if whole else _FAILURES[form]


def _position(value: str, form: Form) -> float | Reason:
    """The preference that a matched number, letter or word stands for."""
    if form != "scale":
        return _POSITIONS[value.lower().split()[-1]]
    number = float(value.replace(",", "."))
    if math.isnan(number):
        return "not a number"
    return (1.0 + number) / 2.0 if -1.0 <= number <= 1.0 else "outside [-1, 1]"
