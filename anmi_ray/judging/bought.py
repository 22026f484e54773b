"""Judgments from answers that were bought: raw answers become preferences here, whenever they are read.

Letters: N answers, P comparisons.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.judging.protocol import Answers, Judge, Order, Questions
from anmi_ray.judging.questions import TextQuestions

NOT_ASKED = "not asked"
Readout = Callable[[str], float | str]  # preference for the first document in [0, 1], or why there is none


def preferences(answers: pa.Table, read: Readout | None) -> tuple[NDArray[np.float64], pa.Array]:
    """(p_first float64[N], error text[N] or null) of Answer rows; exactly one of both in every row.

    Words are read by `read`; without it log probabilities are, renormalised over the first document, the second and,
    where there is one, a tie, which is half of either. An answer in the other form is an error.
    """
    p_first, why = _of_words(answers, read) if read else _of_logs(answers)
    failed = pc.is_valid(answers["error"]).combine_chunks()
    error = pc.if_else(failed, answers["error"].combine_chunks(), why)
    return np.where(failed.to_numpy(zero_copy_only=False), np.nan, p_first), error


def _of_logs(answers: pa.Table) -> tuple[NDArray[np.float64], pa.Array]:
    logs = np.stack([answers[name].to_numpy() for name in ("log_first", "log_second", "log_tie")])
    logs = np.where(np.isnan(logs), -np.inf, logs)
    with np.errstate(invalid="ignore"):
        share = np.exp(logs - logs.max(axis=0, initial=-np.inf))
        p_first = (share[0] + 0.5 * share[2]) / share.sum(axis=0)
    silent = np.isnan(p_first)
    return p_first, pa.array(np.full(len(silent), "no probabilities", object), pa.string(), mask=~silent)


def _of_words(answers: pa.Table, read: Readout) -> tuple[NDArray[np.float64], pa.Array]:
    """Words are read once, however often they were said."""
    said = answers["text"].combine_chunks().dictionary_encode()
    found = [*(read(words) for words in said.dictionary.to_pylist()), "no words"]
    row = pc.fill_null(said.indices, len(found) - 1).to_numpy(zero_copy_only=False)
    value = np.array([one if isinstance(one, float) else np.nan for one in found])
    why = pa.array([None if isinstance(one, float) else one for one in found], pa.string())
    return value[row], why.take(pa.array(row))


def judge_of(
    questions: TextQuestions,
    answers: pa.Table,
    rows: NDArray[np.int64],
    read: Readout | None,
    not_asked: str = NOT_ASKED,
) -> Judge:
    """A judge that answers from Answer rows: `rows` int64[N] is the answer of every question, -1 where none is.

    `not_asked` is the failure of those.
    """
    p_first, error = preferences(answers, read)
    p_first, position = np.append(p_first, np.nan), np.where(rows < 0, answers.num_rows, rows)
    errors = pa.concat_arrays([error.cast(pa.string()), pa.array([not_asked])]).dictionary_encode()
    failure = pc.fill_null(errors.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    messages = tuple(errors.dictionary.to_pylist())

    def ask(asked: Questions, order: Order) -> Answers:
        at = position[questions.of_comparison[:, 0 if order == "ab" else 1]]
        p = p_first[at]
        return Answers(p if order == "ab" else 1.0 - p, failure[at], messages)

    return ask
