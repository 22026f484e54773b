"""P(relevant) of the trained model's scores, a part of evaluate: fitted on dev queries, checked on test queries.

Train queries are not used: the model was trained on them and is overconfident there. Relevance is that by which dev
queries choose, from labels or judges. A candidate without a label counts as not relevant, as in the measures; of judged
queries, only judged candidates count.
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
_MOST = 250_000  # pairs to fit, of whole queries: more change nothing


@dataclass(frozen=True)
class KnownRelevance:
    """Known relevance.

    by: its source.
    rows: query_id, doc_id, truth in [0, 1].
    whole: all other documents of these queries are not relevant.
    """

    by: Truth
    rows: pa.Table
    whole: bool

    def pairs(self, scores: pa.Table) -> ScoredPairs:
        """Return the rows of `scores` (Run of one system) with known relevance."""
        queries = pc.unique(self.rows["query_id"])
        scores = scores.filter(pc.is_in(scores["query_id"], value_set=queries))
        row = find_rows(self.rows, {name: scores[name] for name in _PAIR})
        truth = np.append(self.rows["truth"].to_numpy(), 0.0)[row]  # row -1 is the last
        is_known = np.full(len(row), True) if self.whole else row >= 0
        query = np.unique(np.array(scores["query_id"].to_pylist(), dtype=object), return_inverse=True)[1]
        kept = is_known & (np.cumsum(np.bincount(query, is_known)) <= _MOST)[query]  # ids are hashes: a sample
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
    answered = answers.filter(pc.is_finite(answers["probability"]))
    return KnownRelevance("judges", answered.select([*_PAIR, "probability"]).rename_columns([*_PAIR, "truth"]), False)


def publish(
    artifact: Artifact,
    dev: tuple[KnownRelevance, pa.Table],
    test: tuple[KnownRelevance | None, pa.Table],
    depth: int,
    seed: int,
) -> str:
    """Fit and check the curve, and publish relevance.json; return the reason if no curve was fitted, else "".

    dev, test: known relevance, if any, and the reranked Run of these queries.
    """
    of_dev_queries, pairs = dev[0], dev[0].pairs(_top(dev[1], depth))
    fitted = relevance.fit(pairs, seed)
    if fitted.curve is None:
        artifact.publish_json(relevance.FILE, None)
        return fitted.why_not
    at = relevance.thresholds(pairs, fitted.out_of_fold)
    of_dev = relevance.check(pairs, fitted.out_of_fold, at, of_dev_queries.by)
    of_test = None
    if test[0] is not None and (test_pairs := test[0].pairs(_top(test[1], depth))):
        of_test = relevance.check(test_pairs, fitted.curve.of(test_pairs.score), at, test[0].by)
    artifact.publish_json(relevance.FILE, asdict(Relevance(fitted.curve, depth, of_dev, of_test)))
    return ""


def of(artifact: Artifact) -> Relevance | None:
    """Return the curve of an evaluate artifact; None if nothing was fitted or it is incomplete."""
    content = artifact.read_json(relevance.FILE) if artifact.manifest() is not None else None
    return None if content is None else relevance.from_json(content)


def _top(run: pa.Table, depth: int) -> pa.Table:
    """Return the rows that the model scored, without the first-stage documents below them."""
    return run.filter(pc.less_equal(run["rank"], depth))
