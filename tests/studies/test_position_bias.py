"""The study of position bias at a tenth of its size: what it claims shows already."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from anmi_ray.identity import id_matrix
from jobs.studies import position_bias as study
from jobs.studies.position_bias import HALF, MEAN, OFFSET, ONE, Ends, Fitted, Measured

pytestmark = pytest.mark.slow
BIASES = (0.0, 1.0)


@pytest.fixture(scope="module")
def world() -> study.World:
    return study.world(12, 30)


@pytest.fixture(scope="module")
def measured(world: study.World) -> list[Measured]:
    few = study.pilot(world, 240)
    return [study.audits(few, bias, 40) for bias in BIASES]


@pytest.fixture(scope="module")
def fitted(world: study.World) -> dict[float, dict[str, Fitted]]:
    return {bias: study.fits(world, bias, 4) for bias in BIASES}


def test_a_pilot_has_as_many_pairs_of_every_query(world: study.World) -> None:
    few = study.pilot(world, 240)
    assert few.comparisons.num_rows == 240
    counts = np.unique(id_matrix(few.comparisons["query_id"]), axis=0, return_counts=True)[1]
    assert counts.tolist() == [20] * 12


def test_the_known_bias_lies_in_the_audits_intervals(measured: list[Measured]) -> None:
    assert measured[0].expected == 0.0
    for one in measured:
        assert one.preference[:, 0].mean() == pytest.approx(one.expected, abs=0.02)
        assert one.probits[:, 0].mean() == pytest.approx(one.bias, abs=0.05)
        assert all(share.high > 0.9 for share in one.coverage().values())
    assert (measured[1].preference[:, 1] > 0).all()


def test_both_orders_remove_the_side_and_the_offset_the_shrinkage(fitted: dict[float, dict[str, Fitted]]) -> None:
    fair, biased = fitted[0.0], fitted[1.0]
    assert abs(fair[ONE].favour).max() < 30 < biased[ONE].favour.min()
    assert all(abs(biased[name].favour.mean()) < 20 for name in (MEAN, HALF, OFFSET))
    assert biased[MEAN].true_per_estimated.min() > 1.25
    for found in fitted.values():
        assert found[OFFSET].true_per_estimated.mean() == pytest.approx(1.0, abs=0.1)
    assert biased[OFFSET].offset.mean() == pytest.approx(1.0, abs=0.1)
    assert biased[OFFSET].error.mean() < biased[MEAN].error.mean() < biased[ONE].error.mean()
    assert np.isnan(biased[MEAN].offset).all()
    # without a bias an offset costs nothing
    assert fair[OFFSET].error.mean() == pytest.approx(fair[MEAN].error.mean(), rel=0.05)


def test_tables_and_picture(
    measured: list[Measured], fitted: dict[float, dict[str, Fitted]], capsys: pytest.CaptureFixture[str]
) -> None:
    study.print_audits(measured, "audits")
    study.print_fits(fitted, "ratings")
    said = capsys.readouterr().out
    assert said.count("\n| 1 |") == 1 + len(study.TREATMENTS)
    assert "nan" not in said
    found = dict(study.verdicts({"few": measured}, fitted))
    assert found["the mean of both orders shrinks gaps"] == "holds"
    assert "fails" not in [verdict for claim, verdict in found.items() if "audit" not in claim]
    drawn = ET.fromstring(study.picture(measured, fitted, 240))
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) == 6 * len(BIASES)


def test_a_verdict_needs_its_interval_on_one_side() -> None:
    inside, across, outside = Ends(0.95, 0.94, 0.96), Ends(0.94, 0.92, 0.96), Ends(0.9, 0.89, 0.91)
    assert study.verdict([inside, inside], 0.93, 0.97) == "holds"
    assert study.verdict([inside, across], 0.93, 0.97) == "cannot tell"
    assert study.verdict([across, outside], 0.93, 0.97) == "fails"
    assert study.verdict([inside], 0.0, math.inf) == "holds"
