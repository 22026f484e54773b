"""The mine stage for one bucket: anchors, allow -> weigh -> sample rules, random negatives, extra rated documents."""

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
from anmi_ray.mining.anchors import LIKELY, POSSIBLE, Anchors, Refused, choose
from anmi_ray.mining.categories import CATEGORIES, PLACE
from anmi_ray.mining.mixture import Mixture
from anmi_ray.mining.negatives import Common, Negatives, Rule, RuleVerdict, Sample

# rules by name, from each family's module
ALLOW: dict[str, Rule[Any]] = posterior.ALLOW | denoise.ALLOW | relative.ALLOW
WEIGH: dict[str, Rule[Any]] = posterior.WEIGH | denoise.WEIGH | relative.WEIGH | optimum.WEIGH
SAMPLE: dict[str, Sample[Any]] = sampling.SAMPLE
_POSITIVES = 4  # maximum number besides the anchor; the likeliest five hold nearly all of P(relevant)
_IN_BITS = (BetaMixture, GaussianMixture, Optimum)  # rules whose weights are in bits: no value means full weight


@dataclass(frozen=True)
class RuleInputs:
    """Inputs that only some rules need, in addition to ratings and gaps."""

    # query_id, doc_a, doc_b, preference (of doc_a, 0 to 1): pairs judged directly, for validation; after its round also
    # was_borderline: the pair was an anchor and a borderline document before that round
    direct: pa.Table | None = None
    relevance: pa.Table | None = None  # query_id, doc_id, relevance: P(relevant) of a pointwise model
    mixture: Mixture | None = None  # fitted to gaps of many queries
    # Relevance rows of queries without a known positive: P(relevant), and which documents are confirmed
    confirmed: pa.Table | None = None


NOTHING = RuleInputs()


class Pooled(NamedTuple):
    """A bucket, its anchors, the rejected queries, and the pool of other rated documents."""

    bucket: buckets.RatedBucket
    anchors: Anchors
    refused: list[Refused]
    pool: buckets.Pool


def pooled(
    ratings: pa.Table,
    gaps: pa.Table,
    candidates: pa.Table,
    config: MineConfig,
    inputs: RuleInputs = NOTHING,
) -> Pooled:
    """Return the inputs of the rules of `mine`. Raises as `mine`."""
    bucket = buckets.read(ratings, gaps, candidates, config, inputs.confirmed)
    anchors, refused = choose(gaps, bucket.candidates, bucket.queries, config, inputs.confirmed)
    return Pooled(
        bucket, anchors, refused, buckets.pool(gaps, bucket, anchors, config, inputs.direct, inputs.relevance)
    )


def mine(
    ratings: pa.Table,
    gaps: pa.Table,
    candidates: pa.Table,
    config: MineConfig,
    seed: int,
    inputs: RuleInputs = NOTHING,
) -> tuple[pa.Table, pa.Table]:
    """Return the Examples of one bucket, sorted by (query_id, example_id), and the Rejects.

    Every rated query, and every anchor with gaps, becomes an example or a Reject (key: the query; detail: the anchor).
    Raises DataError on ratings or gaps that are not finite or lack a candidate, ConfigError if a rule's input is
    missing from `inputs`.
    """
    bucket, anchors, refused, pool = pooled(ratings, gaps, candidates, config, inputs)
    common = Common(config, seed, inputs.mixture)
    settled = _settled(pool.negatives, common)
    ruled = weights_of(pool.negatives, common, settled)
    chosen = _choose_negatives(pool.negatives, ruled.weight, common)
    if isinstance(config.weigh, _IN_BITS):
        own = chosen[np.isnan(settled[chosen])]  # verdicts of allow rules are final
        ruled = replace(ruled, weight=_full(ruled.weight, own, pool.negatives.example))
    possible, verdict = _choose_positives(bucket, pool)
    positive = members.rated_members(possible, pool, verdict)
    spare = _choose_extra(pool.negatives, np.concatenate([chosen, possible]), config, seed)
    rated = members.rated_members(chosen, pool, ruled)
    random = members.random_members(anchors, bucket, pool.is_copy, config, seed)
    kept, few = _enough(anchors, rated, random, pool.negatives, config)
    extra = members.rated_members(spare, pool, replace(ruled, weight=np.zeros(len(ruled.weight))))
    roles = [members.anchor_members(pool), positive, rated, random, extra]
    return members.examples(anchors, kept, roles, bucket), rejects(PLACE, [*refused, *few])


def weights_of(negatives: Negatives, common: Common, settled: Reals | None = None) -> RuleVerdict:
    """Return weight and category of all N documents: allow rules in order, then the weigh rule.

    Known positives and confirmed documents weigh 0. A weight set by one allow rule is not changed by later rules.
    settled: the weights that allow rules set, if they are known.
    """
    settled = _settled(negatives, common) if settled is None else settled
    weigh = common.config.weigh
    ruled = WEIGH[weigh.rule](negatives, weigh, common)
    category = posterior.categories(negatives.gap, common.config) if ruled.category is None else ruled.category
    return RuleVerdict(np.where(np.isnan(settled), ruled.weight, settled), category)


def _settled(negatives: Negatives, common: Common) -> Reals:
    """Return weights already fixed by allow rules, applied in order; NaN elsewhere. Known positives weigh 0."""
    settled = np.where(negatives.is_positive, 0.0, np.nan)
    for rule in common.config.allow:
        allowed = ALLOW[rule.rule](negatives, rule, common).weight
        settled = np.where(np.isnan(settled), allowed, settled)
    return settled


def _full(weight: Reals, rows: Ints, example: Ints) -> Reals:
    """Scale weights so that the largest among an example's `rows` is 1, the weight of a random negative."""
    largest = np.zeros(int(example.max(initial=-1)) + 1)
    np.maximum.at(largest, example[rows], weight[rows])
    scaled = weight.copy()
    scaled[rows] /= largest[example[rows]]
    return scaled


def _choose_negatives(negatives: Negatives, weights: Reals, common: Common) -> Ints:
    """Return the selected rows in order: per example, those of highest priority among positive weights."""
    sample = common.config.sample
    priority = SAMPLE[sample.rule](negatives, weights, sample, common)
    usable = np.flatnonzero(weights > 0)
    rank = rank_within(negatives.example[usable], -priority[usable], negatives.gap[usable])
    taken = rank < common.config.negatives
    return usable[taken][np.lexsort((rank[taken], negatives.example[usable][taken]))]


def _choose_positives(bucket: buckets.RatedBucket, pool: buckets.Pool) -> tuple[Ints, RuleVerdict]:
    """Return the rows of documents that may be relevant but anchor no example of their own, likeliest first.

    Their weight is P(relevant) in relation to the anchor's.
    """
    example, p = pool.negatives.example, bucket.probability[pool.doc]
    rows = np.flatnonzero((p > POSSIBLE) & (p <= LIKELY))
    rows = rows[np.lexsort((-p[rows], example[rows]))]
    rows = rows[rank_within(example[rows]) < _POSITIVES]
    of_anchor = bucket.probability[pool.anchor][example]
    weight = p / np.where(of_anchor > 0, of_anchor, 1.0)  # 0: of a known positive
    return rows, RuleVerdict(weight, np.full(len(p), CATEGORIES.index("positive")))


def _choose_extra(negatives: Negatives, chosen: Ints, config: MineConfig, seed: int) -> Ints:
    """Return a uniform sample of unselected rows, including danger and other positives, for the regression loss."""
    spare = np.ones(len(negatives.example), dtype=bool)
    spare[chosen] = False
    rest = np.flatnonzero(spare)
    luck = identity.uniforms(negatives.draw_ids[rest], "mine", seed, "extra")
    return rest[rank_within(negatives.example[rest], luck) < config.rated_extra]


def _enough(
    anchors: Anchors, rated: members.Members, random: members.Members, negatives: Negatives, config: MineConfig
) -> tuple[Flags, list[Refused]]:
    """Return which examples have a negative, and rejects for the others."""
    size = len(anchors.example_ids)
    rated_count, random_count, pool_count = (
        np.bincount(part.example, minlength=size) for part in (rated, random, negatives)
    )
    kept = rated_count + random_count > 0
    query_ids = anchors.table["query_id"]
    anchor_ids = anchors.table["anchor_id"]
    refused = [
        (
            query_ids[i].as_py().hex(),
            "no negative left",
            f"anchor {anchor_ids[i].as_py().hex()}: {rated_count[i]} of {pool_count[i]} rated documents taken by "
            f"{config.composition}, {random_count[i]} random; needs 1",
        )
        for i in np.flatnonzero(~kept).tolist()
    ]
    return kept, refused
