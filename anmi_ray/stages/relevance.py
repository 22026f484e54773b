"""P(relevant) of the trained model's scores, a part of evaluate: fitted on dev queries, checked on test queries.

Train queries cannot tell: the model has seen what is relevant to them, and its scores there are surer than elsewhere.
What is relevant is said by whoever chooses on dev, labels or judges. A candidate without a label counts as not
relevant, as measures count it; of a query that judges looked at only candidates that they speak of are taken.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.records import find_rows
from anmi_ray.evaluation import relevance
from anmi_ray.evaluation.judged import GRADES
from anmi_ray.evaluation.relevance import Relevance, ScoredPairs, Truth
from anmi_ray.store import Artifact

_PAIR = ("query_id", "doc_id")
_MOST = 250_000  # pairs that are looked at, of whole queries: more tell nothing new


@dataclass(frozen=True)
class KnownRelevance:
    """Who says what is relevant, and what: query_id, doc_id, truth in [0, 1]; `whole`: all others are not relevant."""

    by: Truth
    rows: pa.Table
    whole: bool

    def pairs(self, scores: pa.Table) -> ScoredPairs:
        """The rows of `scores` (Run of one system) of which it speaks."""
        queries = pc.unique(self.rows["query_id"])
        scores = scores.filter(pc.is_in(scores["query_id"], value_set=queries))
        row = find_rows(self.rows, {name: scores[name] for name in _PAIR})
        truth = np.append(self.rows["truth"].to_numpy(), 0.0)[row]  # row -1 is the last
        spoken = np.full(len(row), True) if self.whole else row >= 0
        query = np.unique(np.array(scores["query_id"].to_pylist(), dtype=object), return_inverse=True)[1]
        kept = spoken & (np.cumsum(np.bincount(query, spoken)) <= _MOST)[query]  # ids are hashes: a sample
        return ScoredPairs(query[kept].astype(np.int64), scores["score"].to_numpy()[kept], truth[kept])


def by_labels(qrels: pa.Table) -> KnownRelevance:
    """Return the labels of queries with a relevant document."""
    relevant = qrels.filter(pc.greater(qrels["grade"], 0)).select(_PAIR)
    return KnownRelevance("labels", relevant.append_column("truth", [np.ones(relevant.num_rows)]), True)


def by_gains(gains: pa.Table) -> KnownRelevance:
    """Return judged Qrels with grades in thousandths of P(relevant)."""
    truth = gains["grade"].to_numpy() / GRADES
    return KnownRelevance("judges", gains.select(_PAIR).append_column("truth", [truth]), False)


def by_answers(answers: pa.Table) -> KnownRelevance:
    """Return judged probabilities of the pool (query_id, doc_id, probability), NaN without an answer."""
    found = answers.filter(pc.is_finite(answers["probability"]))
    return KnownRelevance("judges", found.select([*_PAIR, "probability"]).rename_columns([*_PAIR, "truth"]), False)


def publish(
    artifact: Artifact,
    dev: tuple[KnownRelevance, pa.Table],
    test: tuple[KnownRelevance | None, pa.Table],
    depth: int,
    seed: int,
) -> str:
    """Fit and check, and publish relevance.json; in words why there is no curve, "" where there is.

    dev, test: what is known (None: nothing), and the reranked Run of these queries.
    """
    known, pairs = dev[0], dev[0].pairs(_top(dev[1], depth))
    fitted = relevance.fit(pairs, seed)
    if fitted.curve is None:
        artifact.publish_json(relevance.FILE, None)
        return fitted.why_not
    at = relevance.thresholds(pairs, fitted.out_of_fold)
    of_dev = relevance.check(pairs, fitted.out_of_fold, at, known.by)
    of_test = None
    told, run = test
    held = None if told is None else told.pairs(_top(run, depth))
    if told is not None and held:
        of_test = relevance.check(held, fitted.curve.of(held.score), at, told.by)
    artifact.publish_json(relevance.FILE, asdict(Relevance(fitted.curve, depth, of_dev, of_test)))
    return ""


def of(artifact: Artifact) -> Relevance | None:
    """Return the curve of an evaluate artifact; None if nothing was fitted or it is incomplete."""
    content = artifact.read_json(relevance.FILE) if artifact.manifest() is not None else None
    return None if content is None else relevance.from_json(content)


def _top(run: pa.Table, depth: int) -> pa.Table:
    """Return the rows that the model scored, without the first-stage documents below them."""
    return run.filter(pc.less_equal(run["rank"], depth))
