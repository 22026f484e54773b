"""Losses over lists of scores, without model, tokenizer or reduction over lists.

Each function maps scores to one loss per list, so that a step can average over its lists however they are split into
micro-batches and workers. Column 0 is the anchor (the positive); padding is masked out.
Legend: B lists, K documents of a list, the anchor first; s scores, e ratings in Elo points, w weights, τ temperature.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

ELO_UNIT = 173.718  # Elo points per logit, 400 / ln 10


def weighted_infonce(
    score_BK: Tensor,
    weight_BK: Tensor,
    mask_BK: Tensor,
    temperature: float | Tensor = 1.0,
    positive_BK: Tensor | None = None,
) -> Tensor:
    """Return weighted InfoNCE per list, [B]: −s⁺/τ + log(exp(s⁺/τ) + Σ_i w_i exp(s_i/τ)) (report, equation 38).

    Negative i enters as s_i/τ + log w_i; w_i = 0 drops it, so its gradient (39), w_i exp(s_i/τ)/(τ Z), is zero exactly.
    If it is not known which of several documents is relevant, `positive_BK` marks those besides the anchor, and the
    loss is marginal over them: −log(Σ_T p_d exp(s_d/τ)) + log(Σ_T exp(s_d/τ) + Σ_i w_i exp(s_i/τ)), where p_d > 0 is
    their weight and the anchor's is 1.

    >>> score, weight = torch.tensor([[2.0, 1.0, 5.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    >>> float(weighted_infonce(score, weight, torch.ones(1, 3, dtype=torch.bool)))  # log(1 + 1/e)
    0.31326...
    """
    positive_BK = torch.zeros_like(mask_BK) if positive_BK is None else positive_BK
    anchor = score_BK[:, :1] / temperature
    relevant = torch.cat([anchor, _others(score_BK, weight_BK, positive_BK, temperature)], dim=1)
    of_all_BK = torch.where(positive_BK, 1.0, weight_BK)
    logit = torch.cat([anchor, _others(score_BK, of_all_BK, mask_BK, temperature)], dim=1)
    return torch.logsumexp(logit, dim=1) - torch.logsumexp(relevant, dim=1)


def _others(score_BK: Tensor, weight_BK: Tensor, mask_BK: Tensor, temperature: float | Tensor) -> Tensor:
    """Return s_i/τ + log w_i without the anchor, [B, K − 1]; −∞ where masked out and for zero weights."""
    present = (mask_BK & (weight_BK > 0))[:, 1:]
    log_weight = torch.where(present, weight_BK[:, 1:], 1.0).log()
    # Mask after computing finite values, so that logsumexp's gradient there is zero rather than NaN.
    return torch.where(present, score_BK[:, 1:] / temperature + log_weight, -torch.inf)


class Debiased(NamedTuple):
    """Loss per list, [B], and the lists whose correction was clamped, so that their negatives get no gradient."""

    loss_B: Tensor
    clamped_B: Tensor


def debiased(
    score_BK: Tensor,
    weight_BK: Tensor,
    mask_BK: Tensor,
    temperature: float | Tensor,
    positive_share: float,
    hardness: float = 0.0,
) -> Debiased:
    """Return the debiased InfoNCE loss of scores in [−1, 1] (Chuang et al. 2020; hardness: Robinson et al. 2021).

    −log(e^{s⁺/τ} / (e^{s⁺/τ} + N_g)), N_g = max((Σ w_i h_i e^{s_i/τ} − τ⁺ N e^{s⁺/τ}) / (1 − τ⁺), N e^{−1/τ}), where
    N = Σ w_i, τ⁺ = `positive_share` (below 1), h_i = e^{β s_i/τ} over its weighted mean and β = `hardness`. Computed in
    log space, since e^{1/τ} overflows float32 at τ = .011. With τ⁺ = 0 and β = 0 it equals `weighted_infonce`. If
    s⁺ − s⁻ > τ ln(1/τ⁺) for all negatives, the correction is clamped and they get no gradient.

    >>> score, weight = torch.tensor([[0.5, -0.5]]), torch.ones(1, 2)
    >>> result = debiased(score, weight, torch.ones(1, 2, dtype=torch.bool), 1.0, 0.1)
    >>> math.log1p((math.exp(-0.5) - 0.1 * math.exp(0.5)) / 0.9 / math.exp(0.5)), float(result.loss_B)
    (0.26055..., 0.26055...)
    """
    logit = _others(score_BK, weight_BK, mask_BK, temperature)
    some = logit.isfinite().any(dim=1)
    # lists without a negative get finite values here and a loss of 0 below
    logit = torch.where(some[:, None], logit, torch.zeros_like(logit))
    log_weight = logit - torch.where(logit.isfinite(), score_BK[:, 1:] / temperature, 0.0)
    log_count = torch.logsumexp(log_weight.detach(), dim=1)
    log_sum = torch.logsumexp(logit, dim=1)
    if hardness:
        importance = torch.where(logit.isfinite(), hardness * score_BK[:, 1:] / temperature, 0.0)
        log_mean = torch.logsumexp(log_weight.detach() + importance, dim=1) - log_count
        log_sum = torch.logsumexp(logit + importance, dim=1) - log_mean
    positive = score_BK[:, 0] / temperature
    log_floor = log_count - 1.0 / temperature
    log_correction = positive + log_count + (math.log(positive_share) if positive_share else -math.inf)
    difference = log_correction - log_sum
    with torch.no_grad():
        corrected = log_sum + torch.log1p(-difference.clamp(max=0.0).exp()) - math.log1p(-positive_share)
        clamped = some & (corrected <= log_floor)
    # where it is clamped, its own gradient would be infinite
    difference = torch.where(clamped | ~some, -1.0, difference)
    corrected = log_sum + torch.log1p(-difference.exp()) - math.log1p(-positive_share)
    log_negative = torch.where(clamped, log_floor, corrected)
    return Debiased(torch.where(some, F.softplus(log_negative - positive), 0.0), clamped)


def ranknet(score_BK: Tensor, rating_BK: Tensor, mask_BK: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Return the RankNet loss per list, [B] (Burges et al. 2005): mean cross-entropy over pairs of rated documents.

    The target is σ((e_i − e_j)/173.7), the preference implied by the ratings; the prediction is σ((s_i − s_j)/τ). The
    loss is 0 with fewer than two rated documents.
    """
    rated = mask_BK & rating_BK.isfinite()
    rating = torch.where(rated, rating_BK, 0.0)
    first, second = torch.triu_indices(score_BK.shape[1], score_BK.shape[1], 1, device=score_BK.device)
    pair = rated[:, first] & rated[:, second]
    wanted = torch.sigmoid((rating[:, first] - rating[:, second]) / ELO_UNIT)
    logit = torch.where(pair, (score_BK[:, first] - score_BK[:, second]) / temperature, 0.0)
    loss = F.binary_cross_entropy_with_logits(logit, wanted, reduction="none")
    return torch.where(pair, loss, 0.0).sum(1) / pair.sum(1).clamp_min(1)


def listnet(
    score_BK: Tensor,
    rating_BK: Tensor,
    mask_BK: Tensor,
    temperature: float | Tensor = 1.0,
    list_temperature_elo: float = 100.0,  # a gap of 230 points means odds of ten to one
) -> Tensor:
    """Return the ListNet loss per list, [B] (Cao et al. 2007): KL(softmax(e/T) ‖ softmax(s/τ)) over rated documents.

    T is in Elo points. The loss is 0 without rated documents.
    """
    rated = mask_BK & rating_BK.isfinite()
    some = rated.any(dim=1, keepdim=True)
    wanted = torch.where(rated, rating_BK, 0.0) / list_temperature_elo
    wanted = torch.where(rated | ~some, wanted, -torch.inf).log_softmax(1)
    predicted = torch.where(rated | ~some, score_BK / temperature, -torch.inf).log_softmax(1)
    both = torch.where(rated, wanted - predicted, 0.0)
    return (torch.where(rated, wanted, -torch.inf).exp() * both).sum(1)


def rating_target(
    rating_BK: Tensor,
    mean_B: Tensor,
    spread_B: Tensor,
    kind: Literal["normalised", "centred"] = "normalised",
) -> Tensor:
    """Return the regression targets of ratings in Elo points, [B, K].

    normalised: (e − μ_q)/σ_q with μ_q, σ_q > 0 over the query's whole candidate list (report, equation 40).
    centred: e in logits (equation 31), with mean 0 in every query, so it carries no information across queries.
    Missing ratings stay NaN.
    """
    if kind == "centred":
        return rating_BK / ELO_UNIT
    return (rating_BK - mean_B[:, None]) / spread_B[:, None]


def regression(predicted_BK: Tensor, target_BK: Tensor, mask_BK: Tensor, precision_BK: Tensor) -> Tensor:
    """Return the mean of p·error² over rated documents per list, [B] (report, equations 31 and 40); 0 without any.

    p is the precision of a document's rating (`training_set.precision`). `predicted_BK` is g_ψ of the score, an
    increasing affine map, so the exported score is the trained one.
    """
    rated = mask_BK & target_BK.isfinite()
    error = torch.where(rated, predicted_BK - torch.where(rated, target_BK, 0.0), 0.0)
    return (precision_BK * error.square()).sum(1) / rated.sum(1).clamp_min(1)


def margin_regression(predicted_BK: Tensor, target_BK: Tensor, mask_BK: Tensor, precision_BK: Tensor) -> Tensor:
    """Return the MarginMSE loss per list, [B] (Hofstätter et al. 2020): mean of p·error² of gaps to the anchor.

    p is the precision of a document's gap (`training_set.precision`). 0 without a rated anchor. Invariant to a constant
    added to all predictions.
    """
    rated = mask_BK & target_BK.isfinite()
    both = rated[:, 1:] & rated[:, :1]
    target = torch.where(rated, target_BK, 0.0)
    error = (predicted_BK[:, :1] - predicted_BK[:, 1:]) - (target[:, :1] - target[:, 1:])
    squared = precision_BK[:, 1:] * torch.where(both, error, 0.0).square()
    return squared.sum(1) / both.sum(1).clamp_min(1)
