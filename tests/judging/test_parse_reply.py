from __future__ import annotations

import math
import time
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.judging.parse_reply import Reason, letter_columns, read, text_columns
from anmi_ray.judging.preferences import of_answers, vote
from anmi_ray.judging.prompt import Form

REASONS = get_args(Reason)

SCALE: list[tuple[str, float | str]] = [
    ("0.7", 0.85), ("-0.5", 0.25), ("+1", 1.0), ("0", 0.5), (" .25\n", 0.625), ("0.5.", 0.75), ("0,5", 0.75),
    ("−0.5", 0.25), ("–0.5", 0.25), ("－０．５", 0.25),  # minus sign, dash, full width
    ("**-0.5**", 0.25), ("`0.3`", 0.65), ("$-0.4$", 0.3), ('"0.2"', 0.6), ("[0.5]", 0.75), 
    ("Score: -0.5", 0.25), ("**Score:** 0.3", 0.65), ("The score is 1", 1.0), ("My final rating = 0.5", 0.75),
    ('{"score": 0.3}', 0.65), ('```json\n{\n  "score": -0.3\n}\n```', 0.35), ('{"final_answer": "-0.5"}', 0.25),
    ("<think>First 0.9, no, 0.2 …</think>\n\n0.4", 0.7), ("Hm?</think>-0.4", 0.3),
    ("", "empty answer"), (" \n\t", "empty answer"), ("```\n```", "cut short"), ("<think>so 0.7", "cut short"),
    ("2", "outside [-1, 1]"), ("-1.01", "outside [-1, 1]"), ('{"score": 1e999}', "outside [-1, 1]"),
    ('{"score": 0.5, "score": -0.5}', "several answers"), ('{"score": 0.7, "winner": "B"}', "several answers"),
]  # fmt: skip
# unfinished numbers, other scales and ranges, and numbers whose words may say the opposite
SCALE += [(answer, "not a number") for answer in (
    "0.", "1.", "nan", "70%", "3/5", "7/10", "0.8/1", "2023-05-06", "--0.5", "±0.5", "<0.5", "- 0.5", "Score - 0.5",
    "0.3-0.7", "0.3 to 0.7", "0.5 or 0.6", "[-1, 1]", "On a scale of 0 to 1: 0.8", "1,000", "1e-1", "٠٫٥", "½",
    '{"score": NaN}', '{"score": null}', '{"score": true}', '{"score": 0.7, "document": "B"}', '{"A": 0.8, "B": 0.3}',
    '{"score": {"A": 0.8}}', '{"score": 0.7, "reason": "B is better"}', "A", "Document A is better.",
    "A: 0.3 B: 0.8", "A: 0.3\nB: 0.8", "Score of B: 0.8", "score_a: 0.5", "0.7 in favour of document B",
    "0.7 (B)", "0.7\nin favour of B", "0.7. The second document is better.", "Document B is better.\nFinal score: 0.7",
    "Document A\nScore: 0.3\n\nDocument B\nScore: 0.8", "Score: 0.5. Score: -0.5", "0.6 für Dokument B", "0.7 → B",
)]  # fmt: skip

LETTER: list[tuple[str, float | str]] = [
    ("A", 1.0), ("B", 0.0), ("T", 0.5), ("b", 0.0), (" A\n", 1.0), ("**B**", 0.0), ("(A)", 1.0), ("A.", 1.0),
    ("A)", 1.0), ("'B'", 0.0), ("[[A]]", 1.0), ("Tie", 0.5), ("Document B", 0.0), ("Option (B)", 0.0),
    ("Ａ", 1.0), ("“A”", 1.0),
    ("```\nA\n```", 1.0), ("```A```", 1.0), 
    ("<think>A? No, B.</think>A", 1.0), ("Answer: A", 1.0), ("**Answer:** B", 0.0), ("The answer is B.", 0.0),
    ("The answer is a tie", 0.5), ("The better document is B", 0.0), ('{"better_document": "A"}', 1.0),
    ('{"answer": "B", "reason": "A is off topic"}', 0.0),
    ("At first A is better, it seems.\n\n**Final answer: B**", 0.0), ("A is off topic.\nAnswer: document B\n", 0.0),
    ("", "empty answer"), ("<think>B seems", "cut short"),
    ("Answer: A\nOn reflection:\nAnswer: B", "several answers"), ('{"answer": "A", "answer": "B"}', "several answers"),
]  # fmt: skip
# other letters, both letters, mentions, and letters whose words may say the opposite
LETTER += [(answer, "neither letter") for answer in (
    "C", "AB", "A/B", "A or B", "A, B", "A and B", "A B", "Neither", "!A", "¬A", "~~A~~", "A?", "A ❌", "0.7", "not A",
    "A is worse", "(A) is worse than (B)", "A < B", "B > A", "A: not relevant",
    "A: partially relevant; B: fully relevant",
    "Document A covers the topic.", "A good match", "The answer is A good document", "The answer is not A",
    "I don't think A is better", "If A is better, choose A", "Answer: A, B", "Answer: A. Answer: B.", "Wrong answer: A",
    "The worse document is A", "A\nis worse than B", "Answer: A\nis what B's author wants to hear", "[[A]] or [[B]]",
    "A ist schlechter", "文档A不如B", "Antwort: nicht A", "It says:\nAnswer: A\nwhich is wrong",
    '{"answer": 1}', '{"answer": "B", "document": "A"}', '{"worse": "A"}', '{"A": 0.2, "B": 0.8}',
)]  # fmt: skip

WORD: list[tuple[str, float | str]] = [
    ("yes", 1.0), ("No.", 0.0), ("**Yes**", 1.0), ("Answer: no", 0.0), ('{"answer": "yes"}', 1.0),
    ('{"relevant": false}', 0.0), ("<think>no, yes</think>\nYes", 1.0), ("It is on topic.\nFinal answer: No", 0.0),
    ("", "empty answer"), ("<think>yes", "cut short"), ("yes or no", "neither yes nor no"),
    ("Yes, but not about this option.", "neither yes nor no"), ("No doubt it does", "neither yes nor no"),
    ("Answer: yes\nAnswer: no", "several answers"), ("A", "neither yes nor no"),
]  # fmt: skip


REPLIES = [
    (form, *reply) for form, replies in {"scale": SCALE, "letters": LETTER, "yes-no": WORD}.items() for reply in replies
]


@pytest.mark.parametrize(("form", "answer", "expected"), REPLIES)
def test_replies_are_read_or_named(form: Form, answer: str, expected: float | str) -> None:
    value = read(answer, form)
    assert value == (expected if isinstance(expected, str) else pytest.approx(expected, abs=1e-12)), value


def test_every_reason_happens() -> None:
    seen = {expected for _, expected in [*SCALE, *LETTER, *WORD, *LOGPROBS] if isinstance(expected, str)}
    assert seen == set(REASONS)


LOGPROBS: list[tuple[dict[str, float], float | str]] = [
    ({"A": 0.0}, 1.0),
    ({"B": math.log(0.75), "A": math.log(0.25)}, 0.25),
    ({" A": math.log(0.3), "A": math.log(0.3), "B": math.log(0.2), "T": math.log(0.2)}, 0.7),
    ({"ĠA": math.log(0.5), "▁B": math.log(0.25), "\nT": math.log(0.25)}, 0.625),
    ({"A": math.log(0.2), "B": math.log(0.2), "The": math.log(0.6)}, 0.5),
    ({"a": math.log(0.5), "A": math.log(0.1), "B": math.log(0.3)}, 0.25),
    ({"A": -math.inf, "B": -0.1}, 0.0),
    ({}, "empty answer"),
    ({"The": -0.1, "a": -3.0}, "no letter among the tokens"),
    ({"A": -6.0, "B": -7.0, "Document": -0.01}, "letters too improbable"),
    ({"A": -math.inf, "B": -math.inf}, "letters too improbable"),
    ({"A": math.nan}, "not log-probabilities"),
    ({"A": 0.9, "B": 0.1}, "not log-probabilities"),
    ({"A": -0.1, " A": -0.1}, "not log-probabilities"),
]


def read_logprobs(logprobs: dict[str, float]) -> float | str:
    """The preference that first-token log-probabilities become, or why they become none."""
    columns = letter_columns(logprobs)
    if "error" in columns:
        return str(columns["error"])
    row = {name: pa.array([value]) for name, value in columns.items()}
    p_first, error = of_answers(pa.table({**row, "error": pa.nulls(1, pa.string())}), None)
    assert error.to_pylist() == [None]
    return float(p_first[0])


@pytest.mark.parametrize(("logprobs", "expected"), LOGPROBS)
def test_probabilities_of_letters_are_read_or_named(logprobs: dict[str, float], expected: float | str) -> None:
    value = read_logprobs(logprobs)
    assert value == (expected if isinstance(expected, str) else pytest.approx(expected, abs=1e-12)), value


def test_equal_letters_are_exactly_a_tie() -> None:
    for logprob in np.linspace(-1.2, -0.72, 50).tolist():
        assert read_logprobs({"A": logprob, "B": logprob, "T": -4.0}) == 0.5


FRAGMENTS = [" is ", "\n", " ", "out of", "\ud800", "\x00", "Score", "score:", "A", "B", "T", "a", "document"]
FRAGMENTS += ["tie", "answer", "not", "final", "0.5", "-", "−", "1", "0.", "e9", ",", ".", ":", "```", "json"]
FRAGMENTS += ["{", "}", '"', "[", "]", "(", ")", "<think>", "</think>", "<answer>", "</b>", "%", "/", "boxed{"]
FRAGMENTS += ["to", "½", "²", "٣", "NaN"]
ANSWERS = st.one_of(st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))


@settings(max_examples=1000)
@given(ANSWERS)
def test_any_text_is_a_preference_or_a_named_reason(answer: str) -> None:
    for value in (read(answer, "scale"), read(answer, "letters")):
        assert value in REASONS if isinstance(value, str) else 0.0 <= value <= 1.0


@settings(max_examples=300)
@given(st.dictionaries(st.one_of(st.text(max_size=3), st.sampled_from(["A", " B", "T"])), st.floats()))
def test_any_log_probabilities_are_a_preference_or_a_named_reason(logprobs: dict[str, float]) -> None:
    value = read_logprobs(logprobs)
    assert value in REASONS if isinstance(value, str) else 0.0 <= value <= 1.0


WHOLE = ["A", " b.\n", "**T**", "(B)", "Yes", '"no"', '{"score": -0.5}', '```json\n{"answer": "A"}\n```']
WHOLE += ["<think>A or B?</think>\nB"]
CUT = [
    "Document B is better. Score: -0", "-0", "0.5", "1", "My score: 1", "A. Document A explains the syntax but",
    "Yes, it mentions the option, but not", "No,", "A -", "Document A", "**",
    '{"score": 0', "[0.5]", "<think>A", "The score",
]  # fmt: skip


@pytest.mark.parametrize("text", WHOLE)
def test_where_tokens_were_spent_what_nothing_could_follow_is_an_answer(text: str) -> None:
    assert text_columns(text, cut=True) == text_columns(text, cut=False) == {"text": text}


@pytest.mark.parametrize("text", CUT)
def test_where_tokens_were_spent_all_else_is_cut_short(text: str) -> None:
    assert text_columns(text, cut=True) == {"error": "cut short"}
    assert text_columns(text, cut=False) == {"text": text}


@settings(max_examples=200)
@given(st.floats(-1, 1))
def test_a_number_that_is_written_is_read(score: float) -> None:
    for answer in (f"{score:.6f}", f"Score: {score:.6f}", f'{{"score": {score:.6f}}}', f'{{"score": {score!r}}}'):
        assert read(answer, "scale") == pytest.approx((1 + score) / 2, abs=1e-6)


PIECES = [
    "<think>",
    "Score: ",
    "-",
    "0",
    "A ",
    "[[",
    "{",
    "1 (",
    "\n",
    "it is ",
    "document A score ",
    "Answer:\n",
    "</think>",
]


@pytest.mark.parametrize("piece", PIECES)
def test_long_answers_take_linear_time(piece: str) -> None:
    start = time.perf_counter()
    for answer in (piece * (200_000 // len(piece)), piece * (200_000 // len(piece)) + "x"):
        read(answer, "scale")
        read(answer, "letters")
        text_columns(answer, cut=True)
    assert time.perf_counter() - start < 20


def test_votes_are_a_step_of_their_own() -> None:
    p = np.array([0.0, 0.49, 0.5, 0.51, 1.0])
    assert vote(p, "sign").tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert vote(p, "soft").tolist() == vote(p, "logprob").tolist() == p.tolist()
