"""Collections: documents, queries and relevance grades, in several layouts."""

from __future__ import annotations

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.corpus.reader import Reader

__all__ = ["Reader", "read"]


def read(config: CorpusConfig, documents_alone: bool = False) -> Reader:
    """Return the reader that `config` names. Raises ConfigError, or DataError if its files are missing.

    `documents_alone`: read nothing but documents, so files of queries and labels need not exist.
    """
    if config.reader == "beir":
        from anmi_ray.corpus.beir import BeirReader

        return BeirReader(config, documents_alone)
    if config.reader == "trec":
        from anmi_ray.corpus.trec import TrecReader

        return TrecReader(config, documents_alone)
    if config.reader == "table":
        from anmi_ray.corpus.table import TableReader

        return TableReader(config, documents_alone)
    if config.reader == "ir_datasets":
        from anmi_ray.corpus.catalogue import CatalogueReader

        return CatalogueReader(config)
    from anmi_ray.corpus.pydocs import PydocsReader

    return PydocsReader(config)
