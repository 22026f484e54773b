"""What a judge's answer says: a preference for the document shown first, or the reason why none can be read.

p in [0, 1] is (1 + s)/2 of the number s that the template `scale` asks for; for `letters` A is 1, B 0, T (a tie) ½.
An answer is read only where one reading is possible: it is all there is, or whatever is marked as the answer agrees (as
final before anything else). All else is a failure with a name, never a vote. `readout.vote` makes 0, ½ and 1 of p.
For `relevance` p is that the document answers the query: yes is 1, no is 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, cast

from anmi_ray.judging import reply_patterns
from anmi_ray.judging.prompt import Form

Reason = Literal[
    "empty answer",
    "cut short",  # ends inside its reasoning, or in "0."
    "not a number",
    "outside [-1, 1]",
    "unclear sign",  # "Score - 0.5"
    "against its own words",  # "B is better: 0.5"
    "a number per document",  # "A: 0.8, B: 0.3" is another scale
    "neither letter",
    "neither yes nor no",
    "several answers",
    "no letter among the tokens",
    "letters too improbable",
    "not log-probabilities",
]
_LEAST_MASS = 0.1  # below it the model was about to say something else, and the letters' ratio is its noise
_LETTERS = {"A": 1.0, "B": 0.0, "T": 0.5}
_WORDS = {"yes": 1.0, "no": 0.0}
_COLUMNS = {
    "letters": {"log_first": "A", "log_second": "B", "log_tie": "T"},
    "yes-no": {"log_first": "yes", "log_second": "no"},
}
_SPACES = " \t\n\r▁ĠĊ"  # as text, and as the marks of SentencePiece and byte-level vocabularies


def read(answer: str, form: Form) -> float | Reason:
    """p of the document shown first, from an answer to a template of this form."""
    return {"scale": read_scale, "letters": read_letter, "yes-no": read_word}[form](answer)


def read_scale(answer: str) -> float | Reason:
    """p of the document shown first, from a number s in [-1, 1]: (1 + s)/2.

    A number is the answer if it is the only one, or the only one that is marked: by a label ("Score: 0.3"), a JSON key,
    a line of its own, a box; marked as final goes before marked. A decimal comma is read, a percentage is not.

    >>> read_scale("Score: −0.5"), read_scale("either 0.2 or -0.2")
    (0.25, 'several answers')
    """
    return _read(answer, _scale)


def read_letter(answer: str) -> float | Reason:
    """p of the document shown first, from a letter: A is 1, B is 0, T or "tie" is ½.

    A letter is the answer if it is all there is, or the only one that is marked: as numbers are, or by words ("I choose
    A", "Document B is better"), unless its clause takes them back ("not", "if"). A mere mention is no answer.

    >>> read_letter("I choose **B**."), read_letter("Document A covers the topic.")
    (0.0, 'neither letter')
    """
    return _read(answer, _letter)


def read_word(answer: str) -> float | Reason:
    """P that the document answers the query, from a word: yes is 1, no is 0.

    A word is the answer if it is all there is, it begins the answer and a stop or a comma follows, or it is the only
    one that is marked, as numbers are. A mere mention is no answer.

    >>> read_word("Yes, it names the option."), read_word("There is no answer in it.")
    (1.0, 'neither yes nor no')
    """
    return _read(answer, _word)


def text_columns(text: str, cut: bool) -> dict[str, str]:
    """The columns of an Answer row that words fill: text, or error. cut: all its tokens were spent.

    An answer that was cut counts only if it is nothing but a word, or a closed JSON object or list: a number may go
    on, and a sentence take itself back.

    >>> text_columns("**A**", cut=True), text_columns("-0", cut=True)
    ({'text': '**A**'}, {'error': 'cut short'})
    """
    if not text.strip():
        return {"error": "empty answer"}
    plain = _without_markup(_without_reasoning(text))
    whole = not cut or reply_patterns.ONE_WORD.fullmatch(plain) or _json_pairs(plain) is not None
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


def _read(answer: str, value_of: Callable[[str], float | Reason]) -> float | Reason:
    """`value_of` the answer without its reasoning, code fences and markup."""
    if not answer.strip():
        return "empty answer"
    text = _without_reasoning(answer)
    if reply_patterns.THOUGHT_START.search(text) or not text.strip():
        return "cut short"
    text = _without_markup(text)
    return value_of(text) if text else "empty answer"


def _without_reasoning(answer: str) -> str:
    ends = [match.end() for match in reply_patterns.THOUGHT_END.finditer(answer)]
    return answer[ends[-1] :] if ends else answer


def _without_markup(text: str) -> str:
    text = reply_patterns.STYLE.sub("", text)
    text = reply_patterns.TAG.sub(lambda tag: "\n" if tag[1] else f"\n{tag[2]}: ", text)
    return reply_patterns.CODE_FENCE.sub("\n", text).strip()


def _scale(text: str) -> float | Reason:
    pairs = _json_pairs(text)
    text = re.sub(r"−\s+(?=[\d.])", "−", text).translate(reply_patterns.PLAIN)  # U+2212 is always a sign
    text = reply_patterns.OUT_OF_ONE.sub("", reply_patterns.SCALE.sub(" ", text))
    if reply_patterns.PER_DOCUMENT.search(text):
        return "a number per document"
    if pairs is not None:
        numbers = [value for value in map(_number, _answers_in(pairs, _number)) if value is not None]
        return _position(numbers[0]) if len(numbers) == 1 else "several answers" if numbers else "not a number"
    if reply_patterns.CUT_NUMBER.search(text):
        return "cut short"
    whole = reply_patterns.WHOLE_NUMBER.fullmatch(text)
    if whole:
        return _position(_value(whole[1]))
    chosen = _marked(reply_patterns.MARKED_NUMBERS, text)
    if not chosen:
        chosen = list(reply_patterns.NUMBER.finditer(text))
        if len(chosen) > 1:
            return "several answers"
    values = {_value(_said(match)) for match in chosen}
    if len(values) != 1:
        return "several answers" if values else "not a number"
    starts = [match.start(match.re.groups) for match in chosen]
    if any(reply_patterns.AFTER_DASH.search(text[max(0, start - 4) : start]) for start in starts):
        return "unclear sign"
    value = values.pop()
    praised = {_vote(_said(match)) for match in _marked((reply_patterns.BETTER,), text, but=_taken_back)}
    return "against its own words" if praised == {0.0 if value > 0 else 1.0} and value else _position(value)


def _letter(text: str) -> float | Reason:
    pairs = _json_pairs(text)
    if pairs is not None:
        letters = [value for value in map(_vote, _answers_in(pairs, _vote)) if value is not None]
        return letters[0] if len(letters) == 1 else "several answers" if letters else "neither letter"
    text = text.translate(reply_patterns.PLAIN)
    whole = _vote(text)
    if whole is not None:
        return whole
    if reply_patterns.ONLY_LETTERS.fullmatch(text):
        return "several answers"
    chosen = _marked(reply_patterns.MARKED_LETTERS, text, but=_taken_back)
    votes = {_vote(_said(match)) for match in chosen} - {None}
    if len(votes) != 1:
        return "several answers" if votes else "neither letter"
    return cast(float, votes.pop())


def _word(text: str) -> float | Reason:
    pairs = _json_pairs(text)
    if pairs is not None:
        words = [value for value in map(_yes, _answers_in(pairs, _yes)) if value is not None]
        return words[0] if len(words) == 1 else "several answers" if words else "neither yes nor no"
    text = text.translate(reply_patterns.PLAIN)
    whole = _yes(text)
    if whole is not None:
        return whole
    said = {_WORDS[_said(match).lower()] for match in _marked(reply_patterns.MARKED_WORDS, text, but=_taken_back)}
    if len(said) != 1:
        return "several answers" if said else "neither yes nor no"
    return said.pop()


def _yes(value: object) -> float | None:
    """A text that is nothing but yes or no; JSON's true and false."""
    if isinstance(value, bool):
        return float(value)
    whole = reply_patterns.WHOLE_WORD.fullmatch(value) if isinstance(value, str) else None
    return None if whole is None else _WORDS[whole[1].lower()]


def _marked(
    patterns: Sequence[re.Pattern[str]], text: str, but: Callable[[re.Match[str]], bool] = lambda match: False
) -> list[re.Match[str]]:
    """What is marked as the final answer; if nothing is, what is marked as an answer."""
    found = [match for pattern in patterns for match in pattern.finditer(text) if not but(match)]
    return [match for match in found if match.groupdict().get("final")] or found


def _said(match: re.Match[str]) -> str:
    """What a pattern found: its last group."""
    return match[match.re.groups]


def _taken_back(match: re.Match[str]) -> bool:
    """Whether "not", "if" or the like stands before it in its clause, of which 200 characters are read."""
    before = match.string[max(0, match.start() - 200) : match.start()]
    ends = [match.end() for match in reply_patterns.CLAUSE_END.finditer(before)]
    return reply_patterns.UNSAID.search(before, ends[-1] if ends else 0) is not None


def _json_pairs(text: str) -> list[tuple[str, object]] | None:
    """Keys and values of a JSON object, doubled keys included; a JSON list as nameless pairs; None for other texts."""
    if text[:1] not in "{[":
        return None
    try:
        content = json.loads(text, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return None
    if isinstance(content, tuple):
        return list(content)
    return [("", value) for value in content] if isinstance(content, list) else None


def _answers_in(pairs: Sequence[tuple[str, object]], read_one: Callable[[object], float | None]) -> list[object]:
    """Values under keys that name an answer ("score", "final_answer"); without such keys, all that can be read."""
    keyed = [value for key, value in pairs if _key(key) in reply_patterns.KEYS]
    return keyed or [value for _, value in pairs if read_one(value) is not None]


def _key(key: str) -> str:
    """The last word of a JSON key."""
    return re.split(r"[\W_]+", key.strip().lower())[-1]


def _number(value: object) -> float | None:
    """A JSON value as a number: one itself (not true or false), or a text that is nothing else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return (
            float(value) if abs(value) <= 1 else math.nan if math.isnan(value) else math.inf
        )  # an int may fit no float
    if isinstance(value, str) and (
        whole := reply_patterns.WHOLE_NUMBER.fullmatch(value.translate(reply_patterns.PLAIN))
    ):
        return _value(whole[1])
    return None


def _vote(value: object) -> float | None:
    """A text that is nothing but a letter, or the word tie."""
    whole = reply_patterns.WHOLE_LETTER.fullmatch(value) if isinstance(value, str) else None
    if whole is None:
        return None
    return _LETTERS["T" if len(whole[1]) > 1 else whole[1].upper()]


def _value(number: str) -> float:
    return float(number.replace(",", "."))


def _position(value: float) -> float | Reason:
    """p of a number on the scale."""
    if math.isnan(value):
        return "not a number"
    return (1.0 + value) / 2.0 if -1.0 <= value <= 1.0 else "outside [-1, 1]"
