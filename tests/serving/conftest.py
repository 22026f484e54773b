"""The run that tests of search share."""

from __future__ import annotations

import pytest

from anmi_ray.api.runs import Run
from tests.serving.searched import write_run


@pytest.fixture(scope="session")
def searched(ray_local: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A whole run; read only."""
    from tests.training.one_task import in_one_task

    folder = tmp_path_factory.mktemp("searched")
    with in_one_task():
        write_run(folder)
    return Run("searched", folder / "root")
