"""Documents that judges confirm as relevant when asked about each alone, and statistics of such a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.records import find_rows
from anmi_ray.judging.panel import scores

_CONFIRMED = 0.5  # mean answer above which a document is confirmed; `mining.relevance` decides whether it is an anchor
_TELLING = 50  # queries with an answer from which "all confirmed" or "none confirmed" is not due to chance
ANSWERED, CONFIRMED = "documents with an answer", "documents confirmed"
QUERIES, WITH_ONE, WITH_SEVERAL = "queries with an answer", "queries confirmed", "queries with several"
UNITS = (ANSWERED, CONFIRMED, QUERIES, WITH_ONE, WITH_SEVERAL)


def confirmations(judgments: pa.Table, comparisons: pa.Table) -> pa.Table:
    """Return probability and confirmed by (query_id, doc_id), for Comparisons with nothing.

    The probability that the document answers the query is the mean over judges that answered; failures are ignored, and
    it is NaN without any answer.
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
    """Return the numbers (UNITS) of queries and documents of `confirmations` with an answer and confirmed."""
    asked = found.filter(pc.is_finite(found["probability"]))
    flags = asked["confirmed"].to_numpy()
    query = pc.dictionary_encode(asked["query_id"].combine_chunks()).indices.to_numpy()
    confirmed = np.bincount(query, flags)
    each = (asked.num_rows, int(flags.sum()), len(confirmed), int((confirmed > 0).sum()), int((confirmed > 1).sum()))
    return dict(zip(UNITS, each, strict=True))


def fault(counts: Mapping[str, int]) -> str | None:
    """Return the problem of a round with these `counts` (no document or every document confirmed), or None."""
    documents, queries = counts[ANSWERED], counts[QUERIES]
    if queries < _TELLING or 0 < counts[CONFIRMED] < documents:
        return None
    if counts[CONFIRMED]:
        return f"judges confirm all {documents:,} documents of {queries:,} queries: so a yes carries no information"
    return f"judges confirm none of {documents:,} documents of {queries:,} queries"


def audit(judgments: pa.Table) -> dict[str, Any]:
    """Return, per judge, the number of questions, the failure rate and the rate of yes among answers."""
    found: dict[str, Any] = {}
    for name in sorted(pc.unique(judgments["judge"]).to_pylist()):
        answers = judgments.filter(pc.equal(judgments["judge"], name))["p_a"]
        p = answers.drop_null().to_numpy()
        yes = float(np.mean(p > _CONFIRMED)) if len(p) else None
        found[name] = {"questions": len(answers), "failure_rate": answers.null_count / len(answers), "yes_rate": yes}
    return {"judges": found}
