"""Select the judged pairs that people answer: half at random, half where judges disagree.

The random half contains the pairs with the smallest hashes, so agreement on it estimates agreement over all pairs
without bias, and a larger selection contains the random half of a smaller one. The other half is drawn without
replacement with weights (Efraimidis and Spirakis 2006). Both are pure functions of ids and seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.identity import uniforms

RANDOM = "random"
DISPUTED = "disputed"
_MIN_WEIGHT = 1e-3  # undisputed pairs are selected when no others are left


@dataclass(frozen=True)
class SelectedPair:
    """A pair that people are asked about.

    pair: id in hexadecimal
    why: RANDOM or DISPUTED
    everyone: True if every person answers it, False if one person does
    """

    pair: str
    why: str
    everyone: bool


def disputes(answers: pa.Table) -> Iterator[tuple[str, float]]:
    """Yield each pair of `answers` (columns pair, judge, order, p_a) and how disputed it is, in [0, 2].

    Four times the variance between the judges' means, plus the mean difference between a judge's two orders.
    """
    each = answers.group_by(["pair", "judge"]).aggregate([("p_a", "mean"), ("p_a", "min"), ("p_a", "max")])
    each = each.append_column("flip", pc.subtract(each["p_a_max"], each["p_a_min"]))
    pairs = each.group_by("pair").aggregate([("p_a_mean", "variance"), ("flip", "mean")])
    weight = 4.0 * pairs["p_a_mean_variance"].to_numpy() + pairs["flip_mean"].to_numpy()
    return zip(pairs["pair"].to_pylist(), weight.tolist(), strict=True)


def select(weights: Mapping[str, float], count: int, overlap: float, seed: int) -> list[SelectedPair]:
    """Select `count` pairs, or all if there are fewer; everyone answers the share `overlap` of them."""
    pairs = sorted(weights)
    weight = np.maximum([weights[pair] for pair in pairs], _MIN_WEIGHT)
    ids = np.frombuffer(bytes.fromhex("".join(pairs)), np.uint8).reshape(-1, 16)
    order = np.argsort(uniforms(ids, "people", seed), kind="stable")
    share = len(ids) if count >= len(ids) else -(-count // 2)
    rest = order[share:]
    draw = uniforms(ids[rest], "people", "worth", seed) ** (1.0 / weight[rest])
    selected = np.concatenate([order[:share], rest[np.argsort(-draw, kind="stable")[: max(count - share, 0)]]])
    everyone = np.zeros(len(selected), np.bool_)
    by_hash = np.argsort(uniforms(ids[selected], "people", "everyone", seed), kind="stable")
    everyone[by_hash[: round(overlap * len(selected))]] = True
    reasons = [RANDOM] * share + [DISPUTED] * (len(selected) - share)
    return [
        SelectedPair(pairs[row], why, bool(all_)) for row, why, all_ in zip(selected, reasons, everyone, strict=True)
    ]
