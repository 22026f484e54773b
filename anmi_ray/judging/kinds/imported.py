"""The judge whose preferences are in a file, which the stage imports once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from anmi_ray.config.judge import ImportedJudgeConfig
from anmi_ray.judging.kinds.base import Judge
from anmi_ray.tables import formats


@dataclass(frozen=True)
class ImportedJudge(Judge):
    """Questions that are not in the file are failures."""

    config: ImportedJudgeConfig

    def fingerprint_inputs(self) -> dict[str, str]:
        """Return the file's content and format: files may change under the same path."""
        return {f"file of {self.name}": formats.identity_of(Path(self.config.path).expanduser())}


JUDGE = ImportedJudge
