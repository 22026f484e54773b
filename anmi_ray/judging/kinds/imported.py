"""The judge whose preferences stand in a file: the stage reads the file once and answers from its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anmi_ray.config.judge import ImportedJudgeConfig
from anmi_ray.judging.kinds.base import Judge
from anmi_ray.tables import formats


@dataclass(frozen=True)
class ImportedJudge(Judge):
    """What a file does not hold is a failure of that name."""

    config: ImportedJudgeConfig

    def fingerprint_inputs(self) -> dict[str, str]:
        """What the file holds, and as what it is read: files may change under the same path."""
        return {f"file of {self.name}": formats.identity_of(Path(self.config.path).expanduser())}


JUDGE = ImportedJudge
