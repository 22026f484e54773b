"""Numbers that strangers write: one grammar, whoever reads them."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.errors import DataError
from anmi_ray.corpus.parsing import judged_lines, judged_of
from anmi_ray.tables import trec
from anmi_ray.tables.rows import Rows, real_of, whole_of
from anmi_ray.tables.streams import LineError

WRITTEN = st.one_of(
    st.text("0123456789+-.eE_, \t\x1d\xa0\x00٣x", max_size=8),
    st.floats().map(repr),
    st.integers().map(str),
    st.sampled_from(["nan", "-inf", "1e400", "1_0.5", "1\x1d", "9" * 5000, "0x10", "½", "٣"]),
)


@given(WRITTEN)
def test_a_number_is_one_to_every_reader(text: str) -> None:
    values, wrong = Rows(pa.table({"x": [text]})).number("x")
    finite = not (wrong["missing"][0] or wrong["not a number"][0]) and math.isfinite(values[0])
    number = real_of(text)
    assert (number is not None) == finite
    assert number is None or number == values[0] == float(text)
    whole = whole_of(text)
    assert whole is None or whole == number
    if whole is None:
        with pytest.raises(LineError) as refused:
            judged_of("q", "d", text)
        assert len(refused.value.detail) <= 200
    else:
        assert judged_of("q", "d", text) == ("q", "d", whole)


@pytest.mark.parametrize("text", ["1_0", "1\x1d", "٣", "9" * 30, "9" * 5000, "2147483648", "1e400", "nan"])
def test_what_is_no_grade_and_no_rank_is_named_in_short(text: str) -> None:
    with pytest.raises(DataError, match="is not a whole number") as caught:
        trec.parse_run([f"q Q0 d {text} 1 t"], "x")
    assert len(str(caught.value)) < 200
    ((_, refused),) = judged_lines([("x:1", f"q 0 d {text}".encode())], "x")
    assert isinstance(refused, LineError)
    assert len(refused.detail) <= 200
