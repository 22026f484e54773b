"""The mine stage for one bucket: anchors, then allow -> weigh -> sample, random negatives, rated extras, the lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anmi_ray import identity
from anmi_ray.config.mine import MineConfig
from anmi_ray.mining import bucket as buckets
from anmi_ray.mining import members, posterior, sampling, table
from anmi_ray.mining.anchors import Anchors, Refused, choose
from anmi_ray.mining.negatives import PLACE, Allow, Flags, Ints, Negatives, Reals, Sample, Weigh, rank_within
from anmi_ray.records import rejects

RULES: dict[str, tuple[Allow, Weigh]] = {
    "table2": (table.allow, table.weigh),
    "posterior": (posterior.allow, posterior.weigh),
}
SAMPLERS: dict[str, Sample] = {"top": sampling.top, "weighted": sampling.weighted}


def mine(
    ratings: pa.Table,
    gaps: pa.Table,
    candidates: pa.Table,
    config: MineConfig,
    seed: int,
    fits: pa.Table | None = None,
) -> tuple[pa.Table, pa.Table]:
    """Example table of one bucket, sorted by (query_id, example_id), and the Rejects.

    Every rated query becomes at least one example or Reject, and so does every anchor with gaps: a Reject's key is the
    query, its detail names the anchor. Queries without ratings were refused before and are not seen here.
    Raises DataError on ratings or gaps that are not finite or belong to no candidate, ConfigError if
    top_rated_anchors is set without `fits`.
    """
    bucket = buckets.read(ratings, gaps, candidates, config)
    anchors, refused = choose(gaps, bucket.candidates, bucket.queries, config, fits)
    pool = buckets.pool(gaps, bucket, anchors, config)
    allow, weigh = RULES[config.rule]
    allowed = allow(pool.negatives, config)
    weights = np.where(allowed, weigh(pool.negatives, config), 0.0)
    chosen = _choose_negatives(pool.negatives, weights, config, seed)
    spare = _choose_extra(pool.negatives, chosen, config, seed)
    rated = members.rated_members(chosen, pool, weights, config)
    random = members.random_members(anchors, bucket, config, seed)
    kept, few = _enough(anchors, rated, random, pool.negatives, config)
    roles = [
        members.anchor_members(anchors, bucket),
        rated,
        random,
        members.rated_members(spare, pool, np.zeros(len(weights)), config),
    ]
    return members.examples(anchors, kept, roles, bucket), rejects(PLACE, [*refused, *few])


def _choose_negatives(negatives: Negatives, weights: Reals, config: MineConfig, seed: int) -> Ints:
    """Rows taken, in order: the `negatives` of largest priority per example among those with weight."""
    priority = SAMPLERS[config.sampling](negatives, weights, config, seed)
    usable = np.flatnonzero(weights > 0)
    rank = rank_within(negatives.example[usable], -priority[usable], negatives.gap[usable])
    taken = rank < config.negatives
    return usable[taken][np.lexsort((rank[taken], negatives.example[usable][taken]))]


def _choose_extra(negatives: Negatives, chosen: Ints, config: MineConfig, seed: int) -> Ints:
    """A uniform sample of the rows not taken, danger zone and other positives included: what the regression sees."""
    spare = np.ones(len(negatives.example), dtype=bool)
    spare[chosen] = False
    rest = np.flatnonzero(spare)
    luck = identity.uniforms(negatives.draw_ids[rest], "mine", seed, "extra")
    return rest[rank_within(negatives.example[rest], luck) < config.rated_extra]


def _enough(
    anchors: Anchors, rated: members.Members, random: members.Members, negatives: Negatives, config: MineConfig
) -> tuple[Flags, list[Refused]]:
    """Examples with at least one negative and `min_rated_negatives` rated ones; the others as rejects."""
    size = len(anchors.example_ids)
    rated_count, random_count, pool_count = (
        np.bincount(part.example, minlength=size) for part in (rated, random, negatives)
    )
    kept = (rated_count >= config.min_rated_negatives) & (rated_count + random_count > 0)
    query_ids, anchor_ids = anchors.table["query_id"], anchors.table["anchor_id"]
    refused = [
        (
            query_ids[i].as_py().hex(),
            "no negative left",
            f"anchor {anchor_ids[i].as_py().hex()}: {rated_count[i]} of {pool_count[i]} rated documents taken by rule "
            f"{config.rule}, {random_count[i]} random; needs {max(config.min_rated_negatives, 1)}",
        )
        for i in np.flatnonzero(~kept).tolist()
    ]
    return kept, refused
