"""Which documents judges confirm: what they say of each by itself, and the figures of a round of such questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.records import find_rows
from anmi_ray.judging.ensemble import scores

_CONFIRMED = 0.5  # above it the judges' mean answer is a yes; whether the document anchors, `mining.relevance` weighs
_TELLING = 50  # queries with an answer from which on all or none confirmed is no chance
ANSWERED, CONFIRMED = "documents with an answer", "documents confirmed"
QUERIES, WITH_ONE, WITH_SEVERAL = "queries with an answer", "queries confirmed", "queries with several"
UNITS = (ANSWERED, CONFIRMED, QUERIES, WITH_ONE, WITH_SEVERAL)


def confirmations(judgments: pa.Table, comparisons: pa.Table) -> pa.Table:
    """By (query_id, doc_id), of Comparisons with nothing: probability (NaN where nobody answered), and confirmed.

    The probability that the document answers the query is the mean of the judges that answered: a failure is no vote.
    """
    voted = scores(judgments)
    row = find_rows(voted, {"comparison_id": comparisons["comparison_id"]})
    probability = np.append(1.0 - voted["score"].to_numpy(), np.nan)[row]  # row -1 is the NaN
    return pa.table(
        {
            "query_id": comparisons["query_id"],
            "doc_id": comparisons["doc_a"],
            "probability": probability,
            "confirmed": probability > _CONFIRMED,
        }
    )


def counts(found: pa.Table) -> dict[str, int]:
    """By UNITS, how many queries and documents of `confirmations` had an answer and were confirmed."""
    asked = found.filter(pc.is_finite(found["probability"]))
    flags = asked["confirmed"].to_numpy()
    query = pc.dictionary_encode(asked["query_id"].combine_chunks()).indices.to_numpy()
    confirmed = np.bincount(query, flags)
    each = (asked.num_rows, int(flags.sum()), len(confirmed), int((confirmed > 0).sum()), int((confirmed > 1).sum()))
    return dict(zip(UNITS, each, strict=True))


def fault(counts: Mapping[str, int]) -> str | None:
    """What is wrong with a round of these `counts`: judges confirm no document, or every one; None where nothing is."""
    documents, queries = counts[ANSWERED], counts[QUERIES]
    if queries < _TELLING or 0 < counts[CONFIRMED] < documents:
        return None
    if counts[CONFIRMED]:
        return f"judges confirm all {documents:,} documents of {queries:,} queries: their yes says nothing"
    return f"judges confirm none of {documents:,} documents of {queries:,} queries"


def audit(judgments: pa.Table) -> dict[str, Any]:
    """By judge: how many questions it was asked, and the shares that failed, and of yes among those that did not."""
    found: dict[str, Any] = {}
    for name in sorted(pc.unique(judgments["judge"]).to_pylist()):
        answers = judgments.filter(pc.equal(judgments["judge"], name))["p_a"]
        p = answers.drop_null().to_numpy()
        yes = float(np.mean(p > _CONFIRMED)) if len(p) else None
        found[name] = {"questions": len(answers), "failure_rate": answers.null_count / len(answers), "yes_rate": yes}
    return {"judges": found}
