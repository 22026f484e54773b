"""Settings of a judge that is a Hugging Face model without a prompt, run where the questions are."""

from __future__ import annotations

import string
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from anmi_ray.config.base import Gpus, ModelJudge, Settings

PARTS = ("query", "first", "second", "sep")  # what the texts of a pairwise model are made of
TEXT = "{query}"
TEXT_PAIR = "{first} {sep} {second}"
FRAME = ("Document: ", "\nQuery:")  # form: likelihood, before the document and before the query
NO_LABELS = "form: pairwise needs first_label and second_label, names that config.json lists in id2label"
_LABELS = ("first_label", "second_label", "tie_label")


class Forward(Settings):
    """With what a transformer that judges computes, in the actors that ask it."""

    how_only = frozenset({"gpus"})

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the transformer; its head computes in float32."""
    gpus: Gpus = 0.0
    """Share of a GPU that each asking actor takes; 0: the CPU, a thread each."""


class EncoderJudgeConfig(Forward, ModelJudge[Literal["encoder"]]):
    """A model without a prompt as judge: one that scores each document, or one that reads both."""

    form: Literal["pointwise", "likelihood", "pairwise"] = "pointwise"
    """pointwise: a reranker, one logit for (query, document), and the preference is σ(slope · (logit of the first −
    logit of the second)); likelihood: a causal language model, whose logit is three times the mean log-probability of
    the query's tokens after the document; pairwise: one pass over the query and both documents, and the preference is
    read from the probabilities of the labels. The model's first text is the query, its second both documents with the
    separator token between them. A folder may hold judge.json, which says labels, other texts and max_tokens: a
    distilled judge's does, so leave them out."""
    slope: float = Field(default=1.0, gt=0, le=1000)
    """pointwise, likelihood: what a difference of logits is multiplied by."""
    first_label: str | None = None
    """pairwise: the model's label (config.json, id2label) for the first document is better."""
    second_label: str | None = None
    """pairwise: its label for the second document is better."""
    tie_label: str | None = None
    """pairwise: its label for neither is better, half of which counts for each; null: none."""
    max_tokens: int | None = Field(default=None, ge=16)
    """Tokens that the model reads at once, the longest texts cut first, null: as many as it can. likelihood: tokens of
    a document, and of a query; null: 256."""

    def _problems(self) -> Iterator[str]:
        pairwise = self.form == "pairwise"
        form = "pointwise" if pairwise else "pairwise"
        for name in self._changed(("slope",) if pairwise else _LABELS):
            yield f"`{name}` belongs to form: {form}; remove it or set form: {form}"
        labels = [label for label in (self.first_label, self.second_label, self.tie_label) if label is not None]
        if labels and (self.first_label is None or self.second_label is None):
            yield NO_LABELS
        if len(set(labels)) < len(labels):
            yield f"first_label, second_label and tie_label must differ, not {', '.join(labels)}"

    @property
    def direct(self) -> EncoderJudgeConfig | None:
        """See OneJudge: the logit of a reranker, against 0."""
        return self if self.form == "pointwise" else None


def check_texts(text: str, text_pair: str | None) -> None:
    """Raise ValueError where texts of a pairwise model do not show query, first and second once, or name others."""
    named = [*_parts_of(text), *_parts_of(text_pair or "")]
    wrong = [part for part in PARTS[:3] if named.count(part) != 1]
    if wrong:
        raise ValueError(
            f"text and text_pair together must show {{{wrong[0]}}} once, not {named.count(wrong[0])} times"
        )


def _parts_of(text: str) -> list[str]:
    """The names in braces of a text. Raises ValueError for braces that do not match and names that are not PARTS."""
    try:
        parsed = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{error}; a brace of the text itself is written twice") from None
    for _, name, spec, conversion in parsed:
        if name is not None and (name not in PARTS or spec or conversion):
            raise ValueError(f"{{{name}}} is not one of {', '.join(f'{{{part}}}' for part in PARTS)}")
    return [name for _, name, _, _ in parsed if name is not None]
