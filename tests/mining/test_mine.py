from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.records import EXAMPLE, REJECT
from anmi_ray.mining import RuleInputs, mine, pooled, shortlist, summary
from anmi_ray.mining.compose import weights_of
from anmi_ray.mining.mixture import Component, Mixture
from anmi_ray.mining.negatives import Common
from tests.mining.world import Query, doc_id, make_tables

TABLE = MineConfig(rule="table2", random_negatives=0, rated_extra=0)
WEIGHTED = MineConfig.model_validate({"rule": "table2", "sample": "weighted"})


def run(tables: Any, config: MineConfig, seed: int = 0) -> tuple[list[dict[str, Any]], pa.Table]:
    beside = RuleInputs(confirmed=tables.confirmed if config.anchors == "confirmed" else None)
    examples, refused = mine(tables.ratings, tables.gaps, tables.candidates, config, seed, beside)
    EXAMPLE.check(examples, "test")
    REJECT.check(refused, "test")
    return examples.to_pylist(), refused


def lists(example: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: value for name, value in example.items() if isinstance(value, list)}


def test_table_2_worked_example() -> None:
    ratings = [300.0, 250.0, 150.0, 0.0, -150.0, -400.0, 420.0]
    tables = make_tables([Query(ratings)])
    (example,), refused = run(tables, TABLE)
    assert refused.num_rows == 0
    # gaps 50 (danger), 150 (soft), 300 (goldilocks), 450 (medium), 700 (easy), -120 (danger)
    assert example["doc_ids"] == [doc_id(0, d) for d in (0, 3, 4, 2, 5)]
    assert example["weights"] == [1.0, 1.0, 0.7, 0.5, 0.3]
    assert example["categories"] == ["anchor", "goldilocks", "medium", "soft", "easy"]
    assert example["tiers"] == [0, 2, 1, 3, 1]
    assert example["gaps"] == [0.0, 300.0, 450.0, 150.0, 700.0]
    assert example["gap_errors"] == [0.0, 50.0, 50.0, 50.0, 50.0]
    assert example["ratings"] == [300.0, 0.0, -150.0, 150.0, -400.0]
    assert example["rating_errors"] == [90.0] * 5
    assert example["rating_mean"] == pytest.approx(np.mean(ratings))
    assert example["rating_sd"] == pytest.approx(np.std(ratings))
    assert example["example_id"] == identity.digest("example", identity.query_id("q0"), doc_id(0, 0))


def with_copies(tables: Any, *pairs: tuple[int, int]) -> Any:
    """The tables, where the documents of each pair (of the first query) have one text."""
    keys = tables.candidates["doc_id"].to_pylist()
    for one, other in pairs:
        keys[keys.index(doc_id(0, other))] = doc_id(0, one)
    return replace(tables, candidates=tables.candidates.append_column("text_key", identity.id_array(keys)))


def test_copies_of_a_positive_are_no_negatives() -> None:
    """Nor are random documents that are; copies among the others are negatives as they were."""
    config = TABLE.model_copy(update={"random_negatives": 2})
    tables = make_tables([Query([300.0, 250.0, 150.0, 0.0, -150.0, -400.0], randoms=2)])
    (plain,), _ = run(tables, config)
    (example,), _ = run(with_copies(tables, (0, 3), (0, 7), (4, 5)), config)
    left_out = {doc_id(0, 3), doc_id(0, 7)}
    assert left_out < set(plain["doc_ids"])
    assert set(example["doc_ids"]) == set(plain["doc_ids"]) - left_out


def test_copies_of_confirmed_documents_are_no_negatives() -> None:
    config = TABLE.model_copy(update={"anchors": "confirmed"})
    tables = make_tables([Query([300.0, 250.0, 0.0, -100.0, -150.0], positives=(), said=((0, 0.9), (1, 0.1)))])
    (plain,), _ = run(tables, config)
    (example,), _ = run(with_copies(tables, (0, 3)), config)
    assert set(plain["doc_ids"]) - set(example["doc_ids"]) == {doc_id(0, 3)}


def test_posterior_gates_and_takes_the_largest_expected_weight() -> None:
    gaps = [150.0, 250.0, 350.0, 450.0, 550.0, 650.0, 800.0]
    tables = make_tables([Query([400.0] + [400.0 - gap for gap in gaps], gap_se=130.0)])
    gate: Any = {"rule": "gate", "largest": 0.05}
    config = MineConfig(allow=(gate,), random_negatives=0, rated_extra=0, negatives=3)
    (example,), _ = run(tables, config)
    # below 100 + 1.645 * 130 = 314 nothing is allowed; then goldilocks weighs most
    assert example["gaps"] == [0.0, 350.0, 450.0, 550.0]
    assert example["weights"][1] == max(example["weights"][1:]) < 1.0


def test_other_positives_are_never_negatives_but_may_be_rated_extras() -> None:
    tables = make_tables([Query([500.0, 100.0, 150.0, 0.0, -300.0], positives=(0, 1))])
    examples, refused = run(tables, MineConfig(rule="table2", random_negatives=0, rated_extra=10))
    assert refused.num_rows == 0
    assert {example["doc_ids"][0] for example in examples} == {doc_id(0, 0), doc_id(0, 1)}
    for example in examples:
        other = ({doc_id(0, 0), doc_id(0, 1)} - {example["doc_ids"][0]}).pop()
        weight = dict(zip(example["doc_ids"], example["weights"], strict=True))
        assert weight[other] == 0.0
        assert sorted(example["doc_ids"]) == sorted(doc_id(0, d) for d in range(5))


def test_random_negatives_are_unrated() -> None:
    tables = make_tables([Query([300.0, 0.0, -300.0], positives=(0, 1), randoms=6)])
    config = MineConfig(rule="table2", random_negatives=3, rated_extra=0)
    examples, _ = run(tables, config)
    assert len(examples) == 2
    randoms = {doc_id(0, d) for d in range(3, 9)}
    taken = []
    for example in examples:
        rows = [i for i, name in enumerate(example["categories"]) if name == "random"]
        assert len(rows) == 3
        for name, value in (
            ("ratings", None),
            ("rating_errors", None),
            ("gaps", None),
            ("gap_errors", None),
            ("weights", 1.0),
            ("tiers", 1),
        ):
            assert [example[name][i] for i in rows] == [value] * 3
        taken.append(frozenset(example["doc_ids"][i] for i in rows))
        assert taken[-1] <= randoms
    assert any(run(tables, config, seed)[0] != examples for seed in range(1, 4))


def test_extras_fill_the_regression_with_what_was_not_taken() -> None:
    ratings = [0.0, *np.linspace(300, -700, 40).tolist()]
    tables = make_tables([Query(ratings, randoms=2)])
    (example,), _ = run(tables, MineConfig(rule="table2", negatives=5, rated_extra=6))
    weights = example["weights"]
    assert [name == "random" for name in example["categories"]] == [False] * 6 + [True] * 2 + [False] * 6
    assert weights[8:] == [0.0] * 6
    assert None not in example["ratings"][8:]
    assert len(set(example["doc_ids"])) == 14
    assert "danger" in {
        name
        for seed in range(5)
        for name in run(tables, MineConfig(rule="table2", negatives=5, rated_extra=6), seed)[0][0]["categories"][8:]
    }


def test_queries_without_a_known_positive() -> None:
    """Of what judges were asked about, what they confirm anchors; nothing else does, however well it is rated."""
    none = float("nan")
    tables = make_tables(
        [
            Query([0.0, 400.0, 350.0, -300.0], positives=(), said=((0, 0.5), (1, 0.2), (2, 0.9), (3, 0.04))),
            Query([10.0, -10.0], positives=(), said=((0, 0.04), (1, 0.03))),
            Query([10.0, -10.0], positives=(), said=((0, none), (1, none))),
            Query([300.0, 0.0]),
        ]
    )
    examples, refused = run(tables, TABLE)
    assert [example["doc_ids"][0] for example in examples] == [doc_id(3, 0)]
    assert refused["reason"].to_pylist() == ["no known positive"] * 3
    assert all("mine.anchors" in detail for detail in refused["detail"].to_pylist())
    config = TABLE.model_copy(update={"anchors": "confirmed"})
    examples, refused = run(tables, config)
    assert {example["doc_ids"][0] for example in examples} == {doc_id(0, 2), doc_id(3, 0)}
    assert dict(zip(refused["key"].to_pylist(), refused["reason"].to_pylist(), strict=True)) == {
        identity.query_id("q1").hex(): "nothing among its candidates answers it",
        identity.query_id("q2").hex(): "no judge answered about its candidates",
    }
    with pytest.raises(ConfigError, match="needs P"):
        mine(tables.ratings, tables.gaps, tables.candidates, config, 0)


@given(
    st.lists(
        st.tuples(
            st.lists(st.floats(-900, 900), min_size=2, max_size=8),
            st.lists(st.sampled_from([0.1, 0.5, 0.8, 1.0, float("nan")]), min_size=4, max_size=4),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_confirmed_documents_anchor_whatever_the_order_of_rows(rows: list[Any], seed: int) -> None:
    def query(ratings: list[float], answers: list[float]) -> Query:
        top = np.argsort(-np.array(ratings), kind="stable")[:4].tolist()
        return Query(ratings, positives=(), randoms=2, said=tuple(zip(top, answers, strict=False)))

    tables = make_tables([query(*row) for row in rows])
    asked = shortlist(tables.gaps, tables.ratings, tables.ratings["rating_elo"].to_numpy())
    keys = ("query_id", "doc_id")
    assert {pair for pair in zip(*(asked[name].to_pylist() for name in ("query_id", "doc_a")), strict=True)} == {
        pair for pair in zip(*(tables.confirmed[name].to_pylist() for name in keys), strict=True)
    }
    config = MineConfig(anchors="confirmed", allow=(), negatives=8, rated_extra=8)
    examples, refused = run(tables, config, seed)
    again, refused_again = run(tables.shuffled(seed), config, seed)
    assert again == examples
    assert refused_again.equals(refused)
    confirmed = {(row["query_id"], row["doc_id"]) for row in tables.confirmed.to_pylist() if row["may_anchor"]}
    probability = {(row["query_id"], row["doc_id"]): row["probability"] for row in tables.confirmed.to_pylist()}
    assert {(row["query_id"], row["doc_ids"][0]) for row in examples} == confirmed  # random ones are always left
    for row in examples:
        others = zip(row["doc_ids"][1:], row["categories"][1:], row["weights"][1:], strict=True)
        p = {doc: probability.get((row["query_id"], doc), 0.0) for doc in row["doc_ids"]}
        for doc, category, weight in others:
            assert (category == "positive") == (0.05 < p[doc] <= 0.5)
            assert weight == (p[doc] / p[row["doc_ids"][0]] if category == "positive" else weight * (p[doc] <= 0.05))
    queries = {identity.query_id(f"q{q}") for q in range(len(rows))}
    assert {row["key"] for row in refused.to_pylist()} == {one.hex() for one in queries - {key for key, _ in confirmed}}


def test_every_rated_query_is_used_or_refused() -> None:
    tables = make_tables(
        [
            Query([300.0, 0.0]),
            Query([300.0, 0.0], rated=False),
            Query([300.0, 0.0], positives=()),
            Query([0.0, 300.0, 250.0]),  # all gaps negative
            Query([0.0, 0.0, 0.0]),  # constant
            Query([0.0]),  # one candidate
        ]
    )
    examples, refused = run(tables, TABLE)
    used = {example["query_id"].hex() for example in examples}
    reasons = dict(zip(refused["key"].to_pylist(), refused["reason"].to_pylist(), strict=True))
    queries = {identity.query_id(f"q{q}").hex() for q in (0, 2, 3, 4, 5)}  # q1 was never rated
    assert used | set(reasons) == queries
    assert not used & set(reasons)
    assert [reasons.get(identity.query_id(f"q{q}").hex()) for q in range(6)] == [
        None,
        None,
        "no known positive",
        "no negative left",
        "no negative left",
        "no gap to a known positive",
    ]


def test_randoms_alone_make_an_example() -> None:
    tables = make_tables([Query([0.0, 300.0, 250.0], randoms=4)])
    (example,), refused = run(tables, MineConfig(rule="table2", rated_extra=0))
    assert example["categories"] == ["anchor", "random", "random"]
    assert refused.num_rows == 0
    examples, refused = run(tables, MineConfig(rule="table2", random_negatives=0))
    assert not examples
    assert refused["reason"].to_pylist() == ["no negative left"]


def test_a_constant_query_has_the_floored_spread() -> None:
    tables = make_tables([Query([0.0, 0.0, 0.0], randoms=2)])
    (example,), _ = run(tables, MineConfig())
    assert (example["rating_mean"], example["rating_sd"]) == (0.0, 10.0)


def test_rows_that_do_not_belong_together_are_refused() -> None:
    tables = make_tables([Query([300.0, 0.0, -100.0])])
    with pytest.raises(DataError, match="are not candidates"):
        mine(tables.ratings, tables.gaps, tables.candidates.slice(0, 2), TABLE, 0)
    with pytest.raises(DataError, match="have no rating"):
        mine(tables.ratings.slice(0, 2), tables.gaps, tables.candidates, TABLE, 0)
    with pytest.raises(DataError, match="anchors have no rating"):
        mine(tables.ratings.slice(1), tables.gaps, tables.candidates, TABLE, 0)


queries = st.lists(
    st.tuples(
        st.lists(st.integers(-8, 8).map(lambda x: 100.0 * x), min_size=1, max_size=12),
        st.integers(0, 3),
        st.integers(0, 4),
        st.sampled_from([0.0, 60.0, 150.0]),
    ),
    max_size=5,
)


@given(
    queries,
    st.sampled_from(["posterior", "table2"]),
    st.sampled_from(["top", "weighted"]),
)
@settings(max_examples=25, deadline=None)
def test_examples_hold_together(rows: list[Any], rule: Any, sampling: Any) -> None:
    tables = make_tables(
        [
            Query(ratings, positives=tuple(range(min(positives, len(ratings)))), randoms=randoms, gap_se=gap_se)
            for ratings, positives, randoms, gap_se in rows
        ]
    )
    config = MineConfig(rule=rule, sample=sampling, negatives=3, random_negatives=2, rated_extra=2)
    examples, refused = run(tables, config, seed=5)
    assert len({example["query_id"].hex() for example in examples} | set(refused["key"].to_pylist())) == len(rows)
    for example in examples:
        names, weights = example["categories"], example["weights"]
        assert len({len(values) for values in lists(example).values()}) == 1
        assert names[0] == "anchor"
        assert names.count("anchor") == 1
        assert (weights[0], example["gaps"][0], example["tiers"][0]) == (1.0, 0.0, 0)
        assert all(0 <= weight <= 1 for weight in weights)
        assert len(set(example["doc_ids"])) == len(names)
        assert sum(weight > 0 for weight in weights[1:]) >= 1
        assert sum(weight > 0 and name != "random" for weight, name in zip(weights[1:], names[1:], strict=True)) <= 3
        assert names.count("random") <= 2
        for i, name in enumerate(names):
            assert (example["ratings"][i] is None) == (name == "random") == (example["gaps"][i] is None)
            assert name != "danger" or weights[i] == 0 or rule == "posterior"
    assert run(tables.shuffled(1), config, seed=5)[0] == examples


def test_a_bucket_is_the_sum_of_its_queries() -> None:
    specs = [Query(np.random.default_rng(q).normal(0, 300, 20).tolist(), randoms=3) for q in range(4)]
    tables = make_tables(specs)
    whole, _ = run(tables, WEIGHTED)
    parts = []
    for q in range(4):
        keep = pa.scalar(identity.query_id(f"q{q}"), type=identity.ID)
        part = [
            table.filter(pc.equal(table["query_id"], keep))
            for table in (tables.ratings, tables.gaps, tables.candidates)
        ]
        parts += mine(part[0], part[1], part[2], WEIGHTED, 0)[0].to_pylist()
    assert sorted(parts, key=lambda example: example["query_id"]) == whole


def test_summary_counts_and_estimates_false_negatives() -> None:
    rng = np.random.default_rng(3)
    specs = [Query([400.0, *rng.normal(-50, 250, 30).tolist()], gap_se=120.0, randoms=3) for _ in range(30)]
    tables = make_tables(specs)
    reports = {}
    for rule in ("table2", "posterior"):
        config = MineConfig(rule=rule)  # type: ignore[arg-type]
        examples, _ = mine(tables.ratings, tables.gaps, tables.candidates, config, 0)
        reports[rule] = report = summary(examples, tables.gaps, config)
        counts: Any = report["categories"]
        assert sum(count["pool"] for count in counts.values()) == tables.gaps.num_rows
        members = sum(len(example) for example in examples["doc_ids"].to_pylist())
        assert sum(count["negatives"] + count["extra"] for count in counts.values()) == members - examples.num_rows
        assert counts["random"]["mean_weight"] == 1.0
    rate: Any = reports["posterior"]["false_negative_rate"]
    assert rate["low"] < rate["mean"] < rate["high"] <= 0.05
    literal: Any = reports["table2"]["false_negative_rate"]
    assert literal["mean"] > rate["mean"]


@pytest.mark.parametrize("rule", ["gaussian-mixture", "optimum"])
def test_of_weights_in_bits_the_largest_of_an_example_is_full(rule: str) -> None:
    """Rated negatives do not vanish beside random ones, which weigh 1; inside a list nothing changes."""
    rng = np.random.default_rng(3)
    specs = [Query([400.0, *rng.normal(-350, 120, 30).tolist()], gap_se=120.0, randoms=3) for _ in range(20)]
    tables = make_tables(specs)
    args = (tables.ratings, tables.gaps, tables.candidates)
    config = MineConfig(rule=rule)
    mixture = Mixture("gaussian", 600, 0.0, 1.0, (Component(1.0, 750.0, 120.0),), (), ())
    beside = RuleInputs(mixture=mixture)
    bucket, anchors, _, pool = pooled(*args, config, beside)
    bits = weights_of(pool.negatives, Common(config, 0, mixture)).weight
    queries = anchors.table["query_id"].take(pa.array(pool.negatives.example)).to_pylist()
    docs = bucket.candidates["doc_id"].take(pa.array(pool.doc)).to_pylist()
    raw = dict(zip(zip(queries, docs, strict=True), bits.tolist(), strict=True))
    examples, _ = mine(*args, config, 0, inputs=beside)
    assert examples.num_rows == len(specs)
    for example in examples.to_pylist():
        taken = [
            (weight, raw[example["query_id"], doc])
            for doc, weight, category in zip(*(example[n] for n in ("doc_ids", "weights", "categories")), strict=True)
            if weight > 0 and category not in ("anchor", "random")
        ]
        ours, theirs = np.array(taken).T
        assert theirs.max() < 0.5
        np.testing.assert_allclose(ours, theirs / theirs.max())
    report: Any = summary(examples, tables.gaps, config)
    counts = report["categories"]
    rated = sum(one["negatives"] * one["mean_weight"] for name, one in counts.items() if one["negatives"]) - 2.0 * 20
    assert report["rated_share"] == pytest.approx(rated / (rated + 2.0 * 20))
    assert report["rated_share"] > 0.5


def test_verdicts_of_validation_stay_beside_weights_in_bits() -> None:
    tables = make_tables([Query([300.0, 200.0, -300.0, -400.0])])
    direct = pa.table(
        {
            "query_id": identity.id_array([identity.query_id("q0")]),
            "doc_a": identity.id_array([doc_id(0, 0)]),
            "doc_b": identity.id_array([doc_id(0, 1)]),
            "preference": [0.7],
        }
    )
    config = MineConfig.model_validate({"allow": ["validate"], "weigh": "optimum", "rated_extra": 0})
    examples, _ = mine(tables.ratings, tables.gaps, tables.candidates, config, 0, RuleInputs(direct=direct))
    (example,) = examples.to_pylist()
    found = dict(zip(example["doc_ids"], example["weights"], strict=True))
    assert found[doc_id(0, 1)] == 0.3
    assert found[doc_id(0, 2)] == 1.0
    assert 0.0 < found[doc_id(0, 3)] < 1.0


def test_summary_of_nothing() -> None:
    tables = make_tables([])
    report: Any = summary(EXAMPLE.empty(), tables.gaps)
    assert report["examples"] == 0
    assert report["false_negative_rate"] == {"mean": None, "low": None, "high": None, "n": 0}


def test_golden_examples() -> None:
    """Changes when the same settings mine other examples: then the mine stage needs a new version."""
    ratings = [[350.0, *(100.0 * np.sin(np.arange(1, 25) * (q + 1)) - 40.0 * np.arange(24)).tolist()] for q in range(3)]
    examples, _ = run(make_tables([Query(one, randoms=4) for one in ratings]), MineConfig())
    facts = [
        f"{doc.hex()} {weight:.6f} {name}"
        for example in examples
        for doc, weight, name in zip(example["doc_ids"], example["weights"], example["categories"], strict=True)
    ]
    assert identity.digest("golden", *facts).hex() == "a07e2289374f23f4e6d4624295044ad1"


def test_a_positive_that_rating_was_not_told_of_is_a_document_like_others() -> None:
    tables = make_tables([Query([500.0, 200.0, 100.0, -200.0], positives=(0, 1))])
    hidden = pc.equal(tables.gaps["anchor_id"], pa.scalar(doc_id(0, 1), type=identity.ID))
    examples, refused = mine(tables.ratings, tables.gaps.filter(pc.invert(hidden)), tables.candidates, TABLE, 0)
    assert refused.num_rows == 0
    (example,) = examples.to_pylist()
    assert dict(zip(example["doc_ids"], example["weights"], strict=True))[doc_id(0, 1)] == 1.0
