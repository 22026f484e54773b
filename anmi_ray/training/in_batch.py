"""In-batch negatives: what the lists of a group lend each other, by index alone.

A group is a slice of the step's stream of lists, so it follows from the settings; it stays whole on one worker and in
one micro-batch, whatever these are. Legend: E all lists, P documents of all lists, D distinct documents of a group.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.train import TrainConfig
from anmi_ray.training.training_set import TrainingSet

Listed = tuple[int, NDArray[np.int64]]  # a list, and the positions in P of the documents it reads


def groups(lists: Sequence[Listed], config: TrainConfig) -> list[list[Listed]]:
    """The step's lists, in their order, as what may not be divided: each alone, or the groups that share documents."""
    size = (config.loss.in_batch_lists or config.lists_per_step) if config.loss.in_batch else 1
    return [list(lists[i : i + size]) for i in range(0, len(lists), size)]


def borrowed(data: TrainingSet, group: Sequence[Listed]) -> list[NDArray[np.int64]]:
    """For each list of a group the documents of its other lists that are negatives to it, each once, rising.

    Left out are the documents of any list of the same query, of this step or not: its anchors and rated documents may
    be relevant, its random ones have a weight of their own.
    """
    read = np.unique(data.document_P[np.concatenate([documents for _, documents in group])])
    return [read[~np.isin(read, documents_of_query(data, int(data.query_E[e])))] for e, _ in group]


def documents_of_query(data: TrainingSet, query: int) -> NDArray[np.int64]:
    """The documents in all lists of a query, each once."""
    order, start = data.by_query
    lists = order[start[query] : start[query + 1]]
    return np.unique(np.concatenate([data.document_P[data.start_E[e] : data.start_E[e + 1]] for e in lists]))
