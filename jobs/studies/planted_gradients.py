"""What both terms of the loss do to a document: gradients on its score, and through it on the weights.

Through the score of one document alone both terms' gradients on any weights are multiples of one vector, the score's
own gradient: their cosine is +1 or -1, whatever the weights. What can be opposed or unrelated are sums over documents.
Legend: N documents of all lists, end to end; B lists, K documents of the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.cross_encoder import torch_threads
from anmi_ray.models.heads import transformer_layers
from anmi_ray.models.pairs import PairTokenizer
from anmi_ray.training.batching import TrainingSet, documents_of_list, lists_of_step, step_batches, total_steps
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.engine import make_engine
from anmi_ray.training.losses import debiased, rating_target, regression, weighted_infonce
from anmi_ray.training.module import Trainable, rate_factor
from anmi_ray.training.objective import Objective

Reals = NDArray[np.float64]
Observer = Callable[[int, Trainable], None]  # (step, model before it)


@dataclass(frozen=True)
class Seen:
    """Lists as a model scores them, end to end: `planted_N` marks false negatives, `rated_N` other rated negatives.

    score_N keeps its graph. probability_N is w exp(s/τ)/Z of Theorem 10; ranking_N and regression_N are the gradients
    on the score of the sums over lists of both terms, without their weights α and 1 − α.
    """

    score_N: Tensor
    probability_N: Tensor
    ranking_N: Tensor
    regression_N: Tensor
    planted_N: NDArray[np.bool_]
    rated_N: NDArray[np.bool_]
    list_N: NDArray[np.int64]


def see(
    module: Trainable,
    data: TrainingSet,
    config: TrainConfig,
    lists: Sequence[NDArray[np.int64]],
    planted_P: NDArray[np.bool_],
    share: float = 0.0,
) -> Seen:
    """Score lists (positions in P, the anchor first) and take both terms' gradients; `share` as `positive_share`."""
    positions, sizes = np.concatenate(lists), [len(one) for one in lists]
    list_N = np.repeat(np.arange(len(lists)), sizes)
    of_list = np.searchsorted(data.start_E, [one[0] for one in lists], side="right") - 1
    query_N, document_N = data.query_E[of_list][list_N], data.document_P[positions]
    pairs = cast(PairTokenizer, data.pairs).batch(data.queries, query_N, data.documents, document_N)
    score_N, predicted_N = module([pairs])
    mask = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]

    def grid(values: Tensor, empty: float) -> Tensor:
        return torch.full(mask.shape, empty, dtype=values.dtype).masked_scatter(mask, values)

    weight_BK = grid(torch.from_numpy(data.weight_P[positions].astype(np.float32)), 0.0)
    rating_BK = grid(torch.from_numpy(data.rating_P[positions].astype(np.float32)), torch.nan)
    mean_B, spread_B = (torch.from_numpy(one[of_list].astype(np.float32)) for one in (data.mean_E, data.spread_E))
    leaf_N, guess_N = (one.detach().requires_grad_(True) for one in (score_N, predicted_N))
    loss, score_BK = config.loss, grid(leaf_N, 0.0)
    shown_BK = score_BK if loss.bound is None else torch.tanh(score_BK / loss.bound)
    temperature = config.start_temperature
    if loss.ranking == "debiased":
        ranking = debiased(shown_BK, weight_BK, mask, temperature, share).loss_B
    else:
        ranking = weighted_infonce(shown_BK, weight_BK, mask, temperature)
    target_BK = rating_target(rating_BK, mean_B, spread_B)
    error = regression(grid(guess_N, 0.0), target_BK, mask)
    (of_ranking,) = torch.autograd.grad(ranking.sum(), leaf_N)
    (of_error,) = torch.autograd.grad(error.sum(), guess_N)
    logit = torch.where(mask & (weight_BK > 0), shown_BK.detach() / temperature + weight_BK.log(), -torch.inf)
    first = np.diff(list_N, prepend=-1) > 0
    return Seen(
        score_N=score_N,
        probability_N=logit.softmax(1)[mask],
        ranking_N=of_ranking,
        regression_N=of_error * module.slope,
        planted_N=planted_P[positions],
        rated_N=np.isfinite(data.rating_P[positions]) & ~first & ~planted_P[positions],
        list_N=list_N,
    )


def cosines(
    seen: Seen, groups: Mapping[str, Sequence[Tensor]], of: Mapping[str, NDArray[np.bool_]]
) -> dict[str, dict[str, float]]:
    """Cosine of both terms' gradients on every group of weights, through the scores of some documents (`of`) alone.

    Real backward passes: the gradient is Σ_n (∂L/∂s_n) ∇s_n over these documents. NaN where one of them is zero.
    """
    weights = list({id(p): p for group in groups.values() for p in group}.values())
    place = {id(p): i for i, p in enumerate(weights)}
    found: dict[str, dict[str, float]] = {}
    for name, chosen in of.items():
        only = torch.from_numpy(chosen)
        sides: list[Sequence[Tensor]] = []
        for gradient in (seen.ranking_N, seen.regression_N):
            given = torch.where(only, gradient, 0.0)
            sides.append(torch.autograd.grad(seen.score_N, weights, given, retain_graph=True))
        found[name] = {
            group: cosine(*(torch.cat([side[place[id(p)]].flatten() for p in members]) for side in sides))
            for group, members in groups.items()
        }
    return found


def damages(seen: Seen, weights: Sequence[Tensor]) -> Reals:
    """Norm of the ranking term's gradient on `weights` through every planted document's score, float64[planted]."""
    found = []
    for n in np.flatnonzero(seen.planted_N):
        of_score = torch.autograd.grad(seen.score_N[n], list(weights), retain_graph=True)
        found.append(float(seen.ranking_N[n].abs() * torch.cat([one.flatten() for one in of_score]).double().norm()))
    return np.array(found)


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of two vectors, in double precision; NaN where one of them is zero.

    >>> cosine(torch.tensor([1.0, 2.0]), torch.tensor([-2.0, -4.0]))
    -1.0
    """
    a, b = a.double(), b.double()
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 0 else float("nan")


def weight_groups(module: Trainable) -> dict[str, Sequence[Tensor]]:
    """What is trained of the network: the last layer, the last two transformer layers, everything."""
    network = module.network
    trained = [p for p in network.parameters() if p.requires_grad]
    last = [m for m in network.modules() if isinstance(m, nn.Linear) and m.out_features == 1][-1]
    layers = transformer_layers(network.encoder)[-2:]  # type: ignore[arg-type]
    upper = [p for layer in layers for p in layer.parameters() if p.requires_grad]
    return {"last layer": [last.weight], "last two transformer layers": upper, "all that is trained": trained}


def slope(x: Reals, y: Reals) -> float:
    """Least-squares slope of y over x: of logarithms, the exponent of y ∝ x^slope.

    >>> x = np.array([1.0, 2.0, 4.0])
    >>> round(slope(np.log(x), np.log(5 * x**1.5)), 6)
    1.5
    """
    x = x - x.mean()
    return float(x @ (y - y.mean()) / (x @ x))


def follow(
    module: Trainable, data: TrainingSet, config: TrainConfig, share: float | None, observe: Observer | None = None
) -> float:
    """Train as `loop.train` does, with a fixed curriculum and without dropout, shown to `observe` before every step.

    Returns the share of lists whose debiased correction was cut off, over all steps.
    """
    engine = make_engine(module, config)
    objective = Objective(module, config, engine.world, share)
    steps, phase, clamped = total_steps(config, len(data)), Phase(config.balance.alpha), 0.0
    with torch_threads(1):
        for step in range(steps):
            if observe is not None:
                observe(step, module)
            batches = step_batches(data, config, step, phase, TrainExecution())
            for i, batch in enumerate(batches):
                engine.accumulate(batch.batches, objective.of(batch, phase), last=i + 1 == len(batches))
            figures = objective.finish(engine.sums(objective.sums()), phase, step)
            clamped += float(figures.get("clamped") or 0.0) / steps
            engine.step(rate_factor(config, step, steps))
    return clamped


def lists_before(
    data: TrainingSet, config: TrainConfig, step: int, planted_P: NDArray[np.bool_]
) -> list[NDArray[np.int64]]:
    """The lists of `step` that read a planted document."""
    phase = Phase(config.balance.alpha)
    found = [documents_of_list(data, config, e, epoch, phase) for e, epoch in lists_of_step(data, config, step)]
    return [one for one in found if planted_P[one].any()]
