"""Every legal composition of rules on hostile queries: nothing lost, weights in [0, 1], verdicts kept."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import NAMED, AnyAllow, AnySample, AnyWeigh
from anmi_ray.core import identity
from anmi_ray.core.records import EXAMPLE, REJECT
from anmi_ray.mining import mine, mixture
from anmi_ray.mining.compose import RuleInputs
from tests.mining.world import Query, make_tables

FORMS: dict[str, list[dict[str, Any]]] = {
    "relative": [{"form": "anchored"}],
    "positive-relative": [{"form": "anchored"}],
    "simans": [{"form": "rank"}],
    "posterior": [{"penalty": 1.0}],
    "gate": [{"largest": 0.5}],
}


def rules(phase: str) -> st.SearchStrategy[dict[str, Any]]:
    models = get_args({"allow": AnyAllow, "weigh": AnyWeigh, "sample": AnySample}[phase])
    names = [get_args(model.model_fields["rule"].annotation)[0] for model in models]
    return st.sampled_from([{"rule": name, **form} for name in names for form in ({}, *FORMS.get(name, []))])


allow_lists = st.lists(rules("allow"), max_size=4, unique_by=lambda rule: rule["rule"]).map(
    lambda chosen: sorted(chosen, key=lambda rule: rule["rule"] != "validate")  # validate is legal in front only
)
one_rating = st.integers(-30, 30).map(lambda x: 40.0 * x) | st.sampled_from([-1e5, 1e5, 0.0])
hostile_queries = st.lists(
    st.tuples(
        st.lists(one_rating, min_size=1, max_size=10)  # anything, all gaps negative and one candidate among it
        | st.integers(1, 10).map(lambda size: [50.0] * size),  # constant
        st.integers(0, 3),  # known positives, none among it
        st.integers(0, 3),  # random documents
        st.sampled_from([0.0, 60.0, 1e4]),  # error of gaps
    ),
    max_size=4,
)


def tables_of(rows: list[Any], seed: int) -> tuple[Any, RuleInputs]:
    """Tables of hostile queries; some pairs were judged directly, some documents seen by a pointwise model."""
    rng = np.random.default_rng(seed)
    tables = make_tables(
        [
            Query(
                ratings,
                positives=tuple(range(min(positives, len(ratings)))),
                randoms=randoms,
                gap_se=gap_se,
                scores=tuple(rng.uniform(-1, 1, len(ratings)).tolist()),
            )
            for ratings, positives, randoms, gap_se in rows
        ]
    )
    gaps, candidates = tables.gaps, tables.candidates
    pairs = gaps.filter(pa.array(rng.random(gaps.num_rows) < 0.5)).to_pylist()
    judged = {
        (r["query_id"], *sorted((r["anchor_id"], r["doc_id"]))): float(rng.choice([0, 0.5, 0.7, 1])) for r in pairs
    }
    direct = {
        **{name: identity.id_array(key[i] for key in judged) for i, name in enumerate(("query_id", "doc_a", "doc_b"))},
        "preference": list(judged.values()),
    }
    relevance = candidates.select(["query_id", "doc_id"]).append_column(
        "relevance", pa.array(rng.random(len(candidates)))
    )
    seen = relevance.filter(pa.array(rng.random(len(candidates)) < 0.5))
    return tables, RuleInputs(pa.table(direct), seen, None)


@given(
    allow_lists,
    rules("weigh"),
    rules("sample"),
    hostile_queries,
    st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_every_legal_composition_holds_on_hostile_queries(
    allow: list[dict[str, Any]],
    weigh: dict[str, Any],
    sample: dict[str, Any],
    rows: list[Any],
    seed: int,
) -> None:
    config = MineConfig.model_validate(
        {"allow": allow, "weigh": weigh, "sample": sample, "negatives": 3, "rated_extra": 2}
    )
    tables, beside = tables_of(rows, seed)
    if weigh["rule"].endswith("mixture"):
        fitted = mixture.fit(tables.gaps["gap_elo"].to_numpy(), config.weigh)  # type: ignore[arg-type]
        beside = RuleInputs(beside.direct, beside.relevance, fitted)
    found, refused = mine(tables.ratings, tables.gaps, tables.candidates, config, seed, beside)
    EXAMPLE.check(found, "test")
    REJECT.check(refused, "test")
    examples = found.to_pylist()

    # rows in = rows out + rejects: every anchor with a gap is an example or a reject, and so is every query
    anchors = {(row["query_id"].hex(), row["anchor_id"].hex()) for row in tables.gaps.to_pylist()}
    used = {(e["query_id"].hex(), e["doc_ids"][0].hex()) for e in examples}
    named = [
        (key, detail) for key, detail in zip(refused["key"].to_pylist(), refused["detail"].to_pylist(), strict=True)
    ]
    left = {(q, a) for q, a in anchors if any(key == q and f"anchor {a}" in detail for key, detail in named)}
    known = {(q, a) for q, a in anchors if q not in {key for key, detail in named if not detail.startswith("anchor ")}}
    assert used | left == known
    assert not used & left
    assert len({query for query, _ in used} | {key for key, _ in named}) == len(rows)

    verdict = config.validation
    for e in examples:
        weights = np.array(e["weights"])
        assert ((weights >= 0) & (weights <= 1)).all()
        assert len(set(e["doc_ids"])) == len(weights)
        positives = _positives(tables, e["query_id"])
        taken = [
            (d, w, g) for d, w, g in zip(e["doc_ids"], e["weights"], e["gaps"], strict=True) if w > 0 and g is not None
        ]
        assert not {d for d, _, _ in taken[1:]} & positives
        assert len(taken) - 1 <= 3
        if verdict is None:
            continue
        for document, weight, distance in taken[1:]:
            p = _preference(beside.direct, e["query_id"], e["doc_ids"][0], document)
            if p is not None and verdict.low <= distance <= verdict.high:
                assert p >= 0.65
                assert weight == (1.0 if p > 0.75 else 0.3)

    again = tables.shuffled(seed)
    same, _ = mine(again.ratings, again.gaps, again.candidates, config, seed, beside)
    assert same.equals(found)


def _positives(tables: Any, query: bytes) -> set[bytes]:
    rows = tables.candidates.to_pylist()
    return {row["doc_id"] for row in rows if row["query_id"] == query and row["is_positive"]}


def _preference(direct: pa.Table | None, query: bytes, anchor: bytes, document: bytes) -> float | None:
    assert direct is not None
    for row in direct.to_pylist():
        if row["query_id"] == query and {row["doc_a"], row["doc_b"]} == {anchor, document}:
            return row["preference"] if row["doc_a"] == anchor else 1.0 - row["preference"]
    return None


@pytest.mark.parametrize("name", sorted(set(NAMED) - {"beta-mixture", "gaussian-mixture"}))
def test_a_query_of_which_nothing_is_left_is_reported(name: str) -> None:
    """The positive is rated last by 500 points and scored last: rules on ratings or scores leave nothing."""
    ratings, scores = [-400.0, 100.0, 200.0], (0.1, 0.8, 0.9)
    config = MineConfig(rule=name, random_negatives=0, rated_extra=0)
    tables = make_tables([Query(ratings, gap_se=20.0, scores=scores)])
    examples, refused = mine(tables.ratings, tables.gaps, tables.candidates, config, 0)
    if name in ("simans", "simans-rank", "closed-optimum", "uniform"):  # these look at no bound
        assert examples.num_rows == 1
        return
    assert examples.num_rows == 0
    assert refused["reason"].to_pylist() == ["no negative left"]
    assert config.composition in refused["detail"][0].as_py()
