"""The study of what rules chose: chosen negatives, true gaps and hidden positives by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.records import QREL, TRUTH
from anmi_ray.core.scale import ELO_PER_PROBIT
from anmi_ray.mining import mine
from jobs.studies import mined_rules
from tests.mining.world import Query, doc_id, make_tables

TABLE = MineConfig(rule="table2", random_negatives=1, rated_extra=2)


def query(number: int) -> bytes:
    return identity.query_id(f"q{number}")


def taken(specs: list[Any], config: MineConfig = TABLE) -> pa.Table:
    tables = make_tables(specs)
    return mined_rules.chosen(mine(tables.ratings, tables.gaps, tables.candidates, config, 0)[0])


def test_what_is_chosen_are_the_rated_negatives_with_weight() -> None:
    # gaps 50 (danger), 150 (soft), 300 (goldilocks), 450 (medium): the first is an extra at most
    table = taken([Query([300.0, 250.0, 150.0, 0.0, -150.0], randoms=2)])
    assert set(table["doc_id"].to_pylist()) == {doc_id(0, d) for d in (2, 3, 4)}
    assert set(table["anchor_id"].to_pylist()) == {doc_id(0, 0)}
    assert set(table["query_id"].to_pylist()) == {query(0)}


def test_true_gaps_are_the_latent_difference_in_points() -> None:
    table = taken([Query([300.0, 0.0, 20.0])])
    latent = {doc_id(0, 0): 1.5, doc_id(0, 1): 1.0}
    truth = TRUTH.table({"query_id": [query(0)] * 2, "doc_id": list(latent), "latent": list(latent.values())})
    gaps = dict(zip(table["doc_id"].to_pylist(), mined_rules.true_gaps(table, truth), strict=True))
    assert gaps[doc_id(0, 1)] == pytest.approx(0.5 * ELO_PER_PROBIT)
    assert np.isnan(gaps[doc_id(0, 2)])
    assert np.isnan(mined_rules.true_gaps(table, TRUTH.empty())).all()


def test_hidden_positives_are_rated_relevant_and_anchor_nothing() -> None:
    tables = make_tables([Query([300.0, 200.0, 0.0], positives=(0,)), Query([1.0, 0.0], positives=(0, 1))])
    rows = [(0, doc_id(0, 0), 1), (0, doc_id(0, 1), 2), (0, doc_id(0, 2), 0), (0, identity.doc_id("unrated"), 1)]
    rows += [(1, doc_id(1, 0), 1), (1, doc_id(1, 1), 1)]
    columns = ("query_id", "doc_id", "grade")
    qrels = QREL.table(dict(zip(columns, zip(*((query(q), d, g) for q, d, g in rows), strict=True), strict=True)))
    found = mined_rules.hidden_positives(qrels, tables.gaps)
    assert found.to_pylist() == [{"query_id": query(0), "doc_id": doc_id(0, 1)}]
    assert mined_rules.hidden_positives(QREL.empty(), tables.gaps).num_rows == 0


def test_a_run_that_is_not_there_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no run of that name"):
        mined_rules.main(["absent", "--root", str(tmp_path)])
