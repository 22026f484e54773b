"""What an adaptive design knows of ratings is what the stage says of them: means, errors, errors of gaps, strengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.scale import to_elo
from anmi_ray.rating import beliefs, fit_globals, rate
from jobs.studies.both_orders import Judged, judged


def parted(data: Judged) -> Judged:
    """The same without some pairs, so that of some queries documents are not rated, or in two parts."""
    kept = data.comparisons.take(pa.array(np.flatnonzero(np.arange(data.comparisons.num_rows) % 5 < 2)))
    return replace(data, comparisons=kept)


@pytest.mark.parametrize(
    ("orders", "config"),
    [
        ("one", RateConfig(judge_offsets=True)),
        ("both", RateConfig(model="bradley-terry", estimate="mode")),
        ("both", RateConfig(strength="learned", judge_offsets=False, judge_weights={"judge1": 3.0})),
    ],
)
def test_beliefs_are_the_ratings_with_all_their_covariances(orders: Literal["one", "both"], config: RateConfig) -> None:
    data = parted(judged((0.6, -0.3, 0.1), 6, 14, degree=3, orders=orders))
    tables = data.judgments, data.comparisons, data.candidates
    shared = fit_globals(*tables, config)
    rated = rate(*tables, shared, config)
    found = list(beliefs(*tables, shared, config))
    assert [one.query_id for one in found] == rated.fits["query_id"].to_pylist()
    assert max(rated.fits["components"].to_pylist()) > 1
    assert min(len(one.doc_ids) for one in found) < 14
    positives = set(data.candidates.filter(data.candidates["is_positive"])["doc_id"].to_pylist())
    for one in found:
        ratings, gaps = (
            table.filter(pc.equal(table["query_id"], pa.scalar(one.query_id, pa.binary(16)))) for table in rated[::2]
        )
        ids = [row.tobytes() for row in one.doc_ids]
        assert ids == ratings["doc_id"].to_pylist()
        assert [doc in positives for doc in ids] == one.positive.tolist()
        component = ratings["component"].to_numpy()
        same = component[:, None] == component
        centring = np.eye(len(ids)) - same / same.sum(axis=1)
        np.testing.assert_allclose(centring @ one.mean, ratings["latent"].to_numpy(), atol=1e-9)
        std_err = to_elo(np.sqrt(np.diag(centring @ one.covariance @ centring)), config.model)
        np.testing.assert_allclose(std_err, ratings["std_err_elo"].to_numpy(), rtol=1e-6)
        a, i = ([ids.index(doc) for doc in gaps[name].to_pylist()] for name in ("anchor_id", "doc_id"))
        variance = one.covariance[a, a] + one.covariance[i, i] - 2.0 * one.covariance[a, i]
        np.testing.assert_allclose(to_elo(np.sqrt(variance), config.model), gaps["gap_se_elo"].to_numpy(), rtol=1e-6)
        # every game counts at both its documents
        comparisons = data.comparisons.filter(pc.equal(data.comparisons["query_id"], ratings["query_id"][0]))
        assert one.strength == pytest.approx(pc.sum(ratings["games"]).as_py() / 2 / comparisons.num_rows)


def test_of_no_answer_nothing_is_believed() -> None:
    data = judged((0.0,), 2, 6, degree=2)
    shared = fit_globals(data.judgments, data.comparisons, data.candidates, RateConfig())
    assert not list(beliefs(data.judgments.slice(0, 0), data.comparisons, data.candidates, shared, RateConfig()))
