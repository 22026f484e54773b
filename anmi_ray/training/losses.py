"""Losses over lists of scores: no model, no tokenizer, no reduction over lists.

Every function maps scores to one loss per list, so a step can average over all of its lists however they are split into
micro-batches and workers. Column 0 is the anchor (the positive); padding is masked out.
Legend: B lists, K documents of a list, the anchor first; s scores, e ratings in Elo points.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

ELO_UNIT = 173.718  # points of one logit, 400 / ln 10: the unit of absolute targets


def weighted_infonce(score_BK: Tensor, weight_BK: Tensor, mask_BK: Tensor, temperature: float = 1.0) -> Tensor:
    """Weighted InfoNCE per list, [B]: −s⁺/τ + log(exp(s⁺/τ) + Σ_i w_i exp(s_i/τ)) (report, equation 38).

    Negative i enters as s_i/τ + log w_i; w_i = 0 drops it, so its gradient (39), w_i exp(s_i/τ)/(τ Z), is zero exactly.

    >>> score, weight = torch.tensor([[2.0, 1.0, 5.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    >>> float(weighted_infonce(score, weight, torch.ones(1, 3, dtype=torch.bool)))  # log(1 + 1/e)
    0.31326...
    """
    present = mask_BK & (weight_BK > 0)
    present[:, 0] = True
    log_weight = torch.where(present, weight_BK, 1.0).log()
    log_weight[:, 0] = 0.0
    # Absent terms get a finite score before the −inf: logsumexp's gradient is then zero there, never nan.
    logit = torch.where(present, score_BK / temperature + log_weight, -torch.inf)
    return torch.logsumexp(logit, dim=1) - score_BK[:, 0] / temperature


def rating_target(
    rating_BK: Tensor,
    mean_B: Tensor,
    spread_B: Tensor,
    kind: Literal["normalised", "absolute"] = "normalised",
) -> Tensor:
    """What the regression aims at, [B, K], in Elo points in, in units of the target out.

    normalised: (e − μ_q)/σ_q with μ_q, σ_q > 0 over the query's whole candidate list (report, equation 40);
    absolute: e in logits (equation 31). Null ratings stay NaN.
    """
    if kind == "absolute":
        return rating_BK / ELO_UNIT
    return (rating_BK - mean_B[:, None]) / spread_B[:, None]


def regression(predicted_BK: Tensor, target_BK: Tensor, mask_BK: Tensor) -> Tensor:
    """Mean squared error per list over its rated documents, [B] (report, equations 31 and 40); 0 where none is rated.

    `predicted_BK` is g_ψ of the score: a rising affine map, so the score that is exported is the one that is trained.
    """
    rated = mask_BK & target_BK.isfinite()
    error = torch.where(rated, predicted_BK - torch.where(rated, target_BK, 0.0), 0.0)
    return error.square().sum(1) / rated.sum(1).clamp_min(1)


def hybrid(infonce_B: Tensor, regression_B: Tensor, alpha: float) -> Tensor:
    """α L_InfoNCE + (1 − α) L_MSE per list, [B] (report, equation 37)."""
    if alpha >= 1.0:
        return infonce_B
    return regression_B if alpha <= 0.0 else alpha * infonce_B + (1.0 - alpha) * regression_B
