"""Where a shard's indexes are kept: made once, named by what they are made of, found again by later runs.

Retrieval says what it needs and how it is made; a shelf knows whether that is there. The stage's shelf keeps it in the
store; `scratch` keeps it for as long as a block lasts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol


class Shelf(Protocol):
    """Things made of one set of texts. Called, it gives the local folder that holds one of them."""

    def __call__(self, kind: str, version: int, settings: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        """The folder of `kind`, made by `make` in an empty folder where it is not there yet.

        `version` and `settings` are all that it follows from besides the texts.
        """
        ...


@contextmanager
def scratch() -> Iterator[Shelf]:
    """A shelf that is empty at first and gone at last."""
    with tempfile.TemporaryDirectory(prefix="anmi-index-") as top:

        def shelf(kind: str, version: int, settings: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
            folder = Path(top) / kind
            if not folder.is_dir():
                folder.mkdir()
                make(folder)
            return folder

        yield shelf
