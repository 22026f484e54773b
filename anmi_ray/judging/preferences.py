"""Preferences in [0, 1] from perceived differences and from logged answers.

Letters: N answers, P comparisons.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.judge import Readout
from anmi_ray.config.prompt import PromptReadout
from anmi_ray.core.scale import normal_cdf
from anmi_ray.judging.protocol import Answers, AnswerSource, Order, Questions
from anmi_ray.judging.questions import TextQuestions

Reals = NDArray[np.float64]
ReadReply = Callable[[str], float | str]  # preference for the first document in [0, 1], or the reason of failure


def of_difference(difference: Reals, readout: Readout, tie_width: float = 0.0) -> Reals:
    """Return the preference for a document perceived `difference` probits above the other; 1/2 within `tie_width`.

    sign: 0, 1/2 or 1 (zELO); soft: Φ(difference), that is (1 + s)/2 of the signed preference s = 2Φ − 1.
    """
    preference = np.where(difference > 0, 1.0, 0.0) if readout == "sign" else normal_cdf(difference)
    tied = (np.abs(difference) < tie_width) | (difference == 0)
    return np.where(tied, 0.5, preference)


def vote(p_first: Reals, readout: PromptReadout) -> Reals:
    """Return the votes of preferences p_first float[N]: sign rounds to 0, 1/2 or 1 (zELO); others keep them.

    >>> vote(np.array([0.4, 0.5, 0.7]), "sign")
    array([0. , 0.5, 1. ])
    """
    return 0.5 + 0.5 * np.sign(p_first - 0.5) if readout == "sign" else p_first


def of_answers(answers: pa.Table, read: ReadReply | None) -> tuple[Reals, pa.Array]:
    """Return (p_first float64[N], error text[N]) of Answer rows; each row has exactly one of the two.

    Replies are parsed by `read`. Without it, log-probabilities of the first document, the second and, if present, a tie
    (half a vote for each) are renormalized. An answer in the other form is an error.
    """
    p_first, why = _from_replies(answers, read) if read else _from_logprobs(answers)
    failed = pc.is_valid(answers["error"]).combine_chunks()
    error = pc.if_else(failed, answers["error"].combine_chunks(), why)
    return np.where(failed.to_numpy(zero_copy_only=False), np.nan, p_first), error


def _from_logprobs(answers: pa.Table) -> tuple[Reals, pa.Array]:
    logs = np.stack([answers[name].to_numpy() for name in ("log_first", "log_second", "log_tie")])
    logs = np.where(np.isnan(logs), -np.inf, logs)
    with np.errstate(invalid="ignore"):
        share = np.exp(logs - logs.max(axis=0, initial=-np.inf))
        p_first = (share[0] + 0.5 * share[2]) / share.sum(axis=0)
    silent = np.isnan(p_first)
    return p_first, pa.array(np.full(len(silent), "no probabilities", object), pa.string(), mask=~silent)


def _from_replies(answers: pa.Table, read: ReadReply) -> tuple[Reals, pa.Array]:
    """Parse each distinct reply once."""
    texts = answers["text"].combine_chunks().dictionary_encode()
    readings = [*(read(words) for words in texts.dictionary.to_pylist()), "no words"]
    row = pc.fill_null(texts.indices, len(readings) - 1).to_numpy(zero_copy_only=False)
    value = np.array([reading if isinstance(reading, float) else np.nan for reading in readings])
    why = pa.array([None if isinstance(reading, float) else reading for reading in readings], pa.string())
    return value[row], why.take(pa.array(row))


def answer_source(
    questions: TextQuestions, answers: pa.Table, rows: NDArray[np.int64], read: ReadReply | None, not_asked: str
) -> AnswerSource:
    """Return a judge's answers from Answer rows: `rows` int64[N] has the row of each question, or -1.

    `not_asked` is the failure reason of questions without a row.
    """
    p_first, error = of_answers(answers, read)
    p_first = np.append(p_first, np.nan)
    position = np.where(rows < 0, answers.num_rows, rows)
    errors = pa.concat_arrays([error.cast(pa.string()), pa.array([not_asked])]).dictionary_encode()
    failure = pc.fill_null(errors.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    messages = tuple(errors.dictionary.to_pylist())

    def ask(asked: Questions, order: Order) -> Answers:
        at = position[questions.of_comparison[:, 0 if order == "ab" else 1]]
        p = p_first[at]
        return Answers(p if order == "ab" else 1.0 - p, failure[at], messages)

    return ask
