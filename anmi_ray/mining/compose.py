"""The mine stage for one bucket: anchors, then allow -> weigh -> sample, random negatives, rated extras, the lists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import BetaMixture, GaussianMixture, Optimum
from anmi_ray.core import identity
from anmi_ray.core.arrays import Flags, Ints, Reals, rank_within
from anmi_ray.core.records import rejects
from anmi_ray.mining import bucket as buckets
from anmi_ray.mining import denoise, members, optimum, posterior, relative, sampling
from anmi_ray.mining.anchors import Anchors, Refused, choose
from anmi_ray.mining.categories import PLACE
from anmi_ray.mining.mixture import Mixture
from anmi_ray.mining.negatives import Common, Negatives, Rule, RuleVerdict, Sample

# by the rule's name in settings; each family of rules says which are its own
ALLOW: dict[str, Rule[Any]] = posterior.ALLOW | denoise.ALLOW | relative.ALLOW
WEIGH: dict[str, Rule[Any]] = posterior.WEIGH | denoise.WEIGH | relative.WEIGH | optimum.WEIGH
SAMPLE: dict[str, Sample[Any]] = sampling.SAMPLE
_IN_BITS = (BetaMixture, GaussianMixture, Optimum)  # rules whose weights have no 1 that means full weight


@dataclass(frozen=True)
class RuleInputs:
    """What some rules need besides ratings and gaps; None where no rule of the settings does."""

    # query_id, doc_a, doc_b, preference (of doc_a, 0 to 1): pairs judged directly, for validation; after its round with
    # was_borderline, whether the pair was an anchor and a borderline document by the fit before it
    direct: pa.Table | None = None
    relevance: pa.Table | None = None  # query_id, doc_id, relevance: P(relevant) of a pointwise model
    mixture: Mixture | None = None  # fitted on gaps of many queries
    # Relevance rows: how likely documents of queries without a known positive answer them, and which are confirmed
    confirmed: pa.Table | None = None


NOTHING = RuleInputs()


class Pooled(NamedTuple):
    """A bucket, its anchors, the queries without one, and the documents beside the anchors."""

    bucket: buckets.RatedBucket
    anchors: Anchors
    refused: list[Refused]
    pool: buckets.Pool


def pooled(
    ratings: pa.Table,
    gaps: pa.Table,
    candidates: pa.Table,
    config: MineConfig,
    beside: RuleInputs = NOTHING,
) -> Pooled:
    """What the rules of `mine` look at. Raises as `mine`."""
    bucket = buckets.read(ratings, gaps, candidates, config, beside.confirmed)
    anchors, refused = choose(gaps, bucket.candidates, bucket.queries, config, beside.confirmed)
    return Pooled(
        bucket, anchors, refused, buckets.pool(gaps, bucket, anchors, config, beside.direct, beside.relevance)
    )


def mine(
    ratings: pa.Table,
    gaps: pa.Table,
    candidates: pa.Table,
    config: MineConfig,
    seed: int,
    beside: RuleInputs = NOTHING,
) -> tuple[pa.Table, pa.Table]:
    """Example table of one bucket, sorted by (query_id, example_id), and the Rejects.

    Every rated query becomes at least one example or Reject, and so does every anchor with gaps: a Reject's key is the
    query, its detail names the anchor. Queries without ratings were refused before and are not seen here.
    Raises DataError on ratings or gaps that are not finite or belong to no candidate, ConfigError if a rule needs
    something that is not given in `beside` (a mixture, confirmed documents).
    """
    bucket, anchors, refused, pool = pooled(ratings, gaps, candidates, config, beside)
    common = Common(config, seed, beside.mixture)
    settled = _settled(pool.negatives, common)
    ruled = _weighed(pool.negatives, settled, common)
    chosen = _choose_negatives(pool.negatives, ruled.weight, common)
    if isinstance(config.weigh, _IN_BITS):
        own = chosen[np.isnan(settled[chosen])]  # verdicts of allow rules are final
        ruled = replace(ruled, weight=_full(ruled.weight, own, pool.negatives.example))
    spare = _choose_extra(pool.negatives, chosen, config, seed)
    rated = members.rated_members(chosen, pool, ruled)
    random = members.random_members(anchors, bucket, pool.is_copy, config, seed)
    kept, few = _enough(anchors, rated, random, pool.negatives, config)
    extra = members.rated_members(spare, pool, replace(ruled, weight=np.zeros(len(ruled.weight))))
    roles = [members.anchor_members(pool), rated, random, extra]
    return members.examples(anchors, kept, roles, bucket), rejects(PLACE, [*refused, *few])


def _settled(negatives: Negatives, common: Common) -> Reals:
    """Weights already fixed by allow rules, one after another; NaN elsewhere. Known positives weigh 0."""
    settled = np.where(negatives.is_positive, 0.0, np.nan)
    for rule in common.config.allow:
        allowed = ALLOW[rule.rule](negatives, rule, common).weight
        settled = np.where(np.isnan(settled), allowed, settled)
    return settled


def _weighed(negatives: Negatives, settled: Reals, common: Common) -> RuleVerdict:
    weigh = common.config.weigh
    ruled = WEIGH[weigh.rule](negatives, weigh, common)
    category = posterior.categories(negatives.gap, common.config) if ruled.category is None else ruled.category
    return RuleVerdict(np.where(np.isnan(settled), ruled.weight, settled), category)


def _full(weight: Reals, rows: Ints, example: Ints) -> Reals:
    """Weights of which the largest of an example's `rows` counts 1, as a random negative does."""
    largest = np.zeros(int(example.max(initial=-1)) + 1)
    np.maximum.at(largest, example[rows], weight[rows])
    scaled = weight.copy()
    scaled[rows] /= largest[example[rows]]
    return scaled


def _choose_negatives(negatives: Negatives, weights: Reals, common: Common) -> Ints:
    """Rows taken, in order: the `negatives` of largest priority per example among those with weight."""
    sample = common.config.sample
    priority = SAMPLE[sample.rule](negatives, weights, sample, common)
    usable = np.flatnonzero(weights > 0)
    rank = rank_within(negatives.example[usable], -priority[usable], negatives.gap[usable])
    taken = rank < common.config.negatives
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
    query_ids = anchors.table["query_id"]
    anchor_ids = anchors.table["anchor_id"]
    refused = [
        (
            query_ids[i].as_py().hex(),
            "no negative left",
            f"anchor {anchor_ids[i].as_py().hex()}: {rated_count[i]} of {pool_count[i]} rated documents taken by "
            f"{config.composition}, {random_count[i]} random; needs {max(config.min_rated_negatives, 1)}",
        )
        for i in np.flatnonzero(~kept).tolist()
    ]
    return kept, refused
