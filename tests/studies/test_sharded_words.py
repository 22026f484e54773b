"""The study of shards' statistics: with the collection's own, shards rank as one index does; without, they need not."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from anmi_ray.config.corpus import CorpusConfig
from jobs.studies import sharded_words as study
from tests.small import write_topics


def test_shards_rank_as_one_index_with_the_collection_s_statistics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_topics(tmp_path / "made")
    of = study.read("made", CorpusConfig(reader="beir", path=str(folder)))
    one, many = study.searched(of, 1), study.searched(of, 5)
    of_system = {name: many.filter(pc.equal(many["system"], name)) for name in (study.OWN, study.WHOLE)}
    assert of_system[study.WHOLE].equals(one.filter(pc.equal(one["system"], study.WHOLE)))
    assert not of_system[study.OWN].equals(one.filter(pc.equal(one["system"], study.OWN)))
    found = study.corrected([study.measure(of, shards) for shards in (1, 5)])
    assert found[0].mean["nDCG@10", study.OWN] == found[0].mean["nDCG@10", study.WHOLE] > 0
    study.show(found)
    assert "| made | 5 | " in capsys.readouterr().out


def test_a_mistake_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not NAME=FOLDER"):
        study.main(["--data", "made", "--root", str(tmp_path)])
