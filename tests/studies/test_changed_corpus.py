"""A corpus that changes: who is asked about what, what it is worth, and how ratings move."""

from __future__ import annotations

import numpy as np
import pytest

from anmi_ray.core.scale import to_elo
from jobs.studies.changed_corpus import MEASURES, drawn_again, drift, measured, verdict
from jobs.studies.changes import DEGREE, HALF, WAYS, Change, changed, fitted
from jobs.studies.harness import interval


@pytest.fixture(scope="module")
def change() -> Change:
    return changed(12, 60, 12, 12)


def test_who_is_asked_about_what(change: Change) -> None:
    assert change.fresh.sum() == 12 * 12
    assert change.after.sum() == change.before.sum() == 12 * 60
    for degree in (HALF, DEGREE):
        first, second = change.ends(change.new_pairs(degree))
        fresh = np.bincount(np.concatenate([first, second]), minlength=len(change.fresh))[change.fresh]
        np.testing.assert_array_equal(fresh, degree)
        assert (change.fresh[first] | change.fresh[second]).all()
    assert change.after[change.ends(change.kept)].all()
    assert change.calls(change.asked).sum() == change.calls(change.kept).sum() == 0
    same = changed(3, 60, 0, 0)
    assert same.calls(same.graph(DEGREE, 0)).sum() == 0  # where nothing changed a run asks nothing
    assert same.calls(same.graph(DEGREE, 1)).mean() > 180


def test_ways_at_their_calls(change: Change) -> None:
    found = {name: way(change) for name, way in WAYS.items()}
    calls = {name: float(one.calls.mean()) for name, one in found.items()}
    assert calls["anew"] == 240 > calls["reused"] > calls["anew, 4"] == 120
    assert calls["joined"] == calls["joined, gone kept"] == calls["fixed"] == calls["online"]
    assert calls["joined"] < 0.4 * calls["anew"]
    assert calls["joined, top"] == pytest.approx(calls["joined, 4"], abs=0.5)
    means = {
        name: dict(zip(MEASURES, measured(change, one).mean(axis=1).tolist(), strict=True))
        for name, one in found.items()
    }
    assert abs(means["joined"]["RMSE"] - means["anew"]["RMSE"]) < 12
    assert means["anew, 4"]["RMSE"] > means["anew"]["RMSE"] + 20
    assert means["joined, gone kept"]["RMSE, old"] < means["joined"]["RMSE, old"]
    assert means["joined, 4"]["RMSE, new"] > means["joined"]["RMSE, new"] + 15
    for name in ("anew", "reused", "joined", "joined, gone kept", "joined, top"):
        assert 0.91 < means[name]["coverage"] < 0.98
    one = found["fixed"].rating[(change.query == 0) & change.after]
    assert one.mean() == pytest.approx(0.0, abs=1e-9)


def test_fixed_leaves_old_gaps_as_they_are(change: Change) -> None:
    old = fitted(change, change.before, change.asked, change.before)
    now = WAYS["fixed"](change)
    at = np.flatnonzero((change.query == 3) & change.before & change.after)
    np.testing.assert_allclose(np.diff(now.rating[at]), np.diff(old.rating[at]), atol=1e-3)


def test_levels_move_as_the_mean_of_the_truth(change: Change) -> None:
    _, values = drift(change, 0.2)
    truth = to_elo(change.every.truth, "thurstone")
    means = [
        np.bincount(change.query[which], truth[which]) / np.bincount(change.query[which])
        for which in (change.before, change.after)
    ]
    for one in values:
        assert one["truth's mean"]["difference"] == pytest.approx(float((means[0] - means[1]).mean()))
        assert one["moved"]["difference"] == pytest.approx(one["truth's mean"]["difference"], abs=12)
        assert one["told, less own mean"]["difference"] < 0.08


def test_a_graph_drawn_again_has_few_of_the_pairs() -> None:
    table, values = drawn_again(6, 100)
    assert [row[0] for row in table.rows][:3] == ["one replaced", "one added", "one gone"]
    share = {one["case"]: one["share"]["difference"] for one in values}
    assert share["one replaced"] > share["5% replaced"] > share["50% replaced"]
    assert share["50% replaced"] == pytest.approx(8 / 99, abs=0.05)


def test_verdicts_are_by_the_interval() -> None:
    from anmi_ray.evaluation.replicates import contrast

    one = contrast("a", "b", [np.linspace(1.0, 3.0, 50)[None, :]])
    assert [verdict(one, margin) for margin in (5.0, 1.0, 2.0)] == ["holds", "fails", "cannot tell"]
    assert [verdict(one, -margin) for margin in (5.0, 1.0)] == ["holds", "holds"]
    assert interval(one).startswith("2.000 [")
