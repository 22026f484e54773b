"""Assign queries to splits by hashes of their texts, so that neither files nor their order matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from anmi_ray.core import identity

SPLITS_BY_RANK = ("test", "dev", "train")  # a text found in two splits stays in the first of these


@dataclass(frozen=True)
class QueryRow:
    """A query whose split is not final; `place`: where it was read."""

    external_id: str
    text: str
    split: str
    place: str

    @property
    def text_key(self) -> bytes:
        """Identifies the same query in any spelling."""
        return text_key(self.text)


def text_key(text: str) -> bytes:
    """Hash a query's text with white space collapsed and case folded."""
    return identity.text_hash(" ".join(text.split()).casefold())


def split_of(text_keys: list[bytes], dev: float, test: float, seed: int = 0) -> list[str]:
    """Return the split of each query by a hash of its text salted with `seed`: shares `dev` and `test`, else train."""
    u = _uniforms(text_keys, seed)
    return np.where(u < test, "test", np.where(u < test + dev, "dev", "train")).tolist()


def dev_by_group(text_keys: list[bytes], members: list[list[bytes]], share: float, seed: int = 0) -> list[bool]:
    """Choose about `share` of the queries for dev, in whole groups of queries that have a member in common.

    `members[i]`: ids that keep query i with others, such as its relevant documents. Groups come in the order of the
    smallest salted hash of their texts; one that would make dev too large is skipped. If no group fits, because almost
    all queries are connected, queries are chosen one by one.
    """
    if not text_keys or not share:
        return [False] * len(text_keys)
    row = np.repeat(np.arange(len(members)), [len(ids) for ids in members])
    column = np.unique(np.array([key for ids in members for key in ids]), return_inverse=True)[1] + len(members)
    size = len(members) + len(row)
    graph = sparse.coo_array((np.ones(len(row)), (row, column)), shape=(size, size))
    group = np.unique(csgraph.connected_components(graph, directed=False)[1][: len(members)], return_inverse=True)[1]
    u = _uniforms(text_keys, seed)
    first = np.full(int(group.max()) + 1, np.inf)
    count = np.bincount(group)
    np.minimum.at(first, group, u)
    dev = np.zeros(len(first), dtype=bool)
    left = round(share * len(text_keys))
    for g in np.argsort(first, kind="stable"):
        if count[g] <= left:
            dev[g] = True
            left -= int(count[g])
    return (dev[group] if dev.any() else u < share).tolist()


def _uniforms(text_keys: list[bytes], seed: int) -> NDArray[np.float64]:
    ids = np.frombuffer(b"".join(text_keys), dtype=np.uint8).reshape(-1, identity.ID_BYTES)
    return identity.uniforms(ids, "split", *([seed] if seed else []))
