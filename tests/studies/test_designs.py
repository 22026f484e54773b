"""Designs at their calls: the adaptive one finds the top with a quarter of the uniform graph's questions."""

from __future__ import annotations

import numpy as np
import pytest

from jobs.studies.both_orders import world
from jobs.studies.designs import MEASURES, Design, measured


@pytest.mark.slow
def test_a_quarter_of_the_calls_finds_the_top() -> None:
    of = world(20, 100)
    rows = Design("uniform", 8, both=True), Design("uniform", 4), Design("top", 4)
    assert [one.calls(100) for one in rows] == [800, 200, 200]
    means = [dict(zip(MEASURES, np.nanmean(measured(of, one), axis=1).tolist(), strict=True)) for one in rows]
    uniform, few, top = means
    assert top["P@10"] > few["P@10"] + 0.08
    assert top["nDCG@10"] > uniform["nDCG@10"] - 0.02
    assert top["RMSE"] > 1.5 * uniform["RMSE"]  # of what is not wanted
    assert 0.92 < top["coverage"] < 0.97
