"""A complete report's data."""

from __future__ import annotations

import pytest

from anmi_ray.reports.run import ReportData

from . import synthetic


@pytest.fixture(scope="session")
def data() -> ReportData:
    """A complete report's data."""
    return synthetic.report_data()
