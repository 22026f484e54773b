"""What a training's driver hears of its workers."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from anmi_ray.runtime.train_workers import new_board, shown


@pytest.mark.usefixtures("ray_local")
def test_every_dev_measure_is_handed_over_however_fast_they_come() -> None:
    board, rows, notices = new_board(), list[dict[str, Any]](), list[str]()
    with shown(board, rows.append, notices.append):
        for step in range(1, 41):
            board.write.remote({"step": step, "dev": step / 100 if step % 10 == 0 else None})
        ray.get(board.notice.remote("mind this"))
        ray.get(board.write.remote({"step": 41, "dev": None}))
    measured = [row["step"] for row in rows if row["dev"] is not None]
    assert measured == [10, 20, 30, 40]
    assert rows[-1]["step"] == 41
    assert [row["step"] for row in rows] == sorted({row["step"] for row in rows})
    assert notices == ["mind this"]
