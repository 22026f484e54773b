"""Weights between the start and what was trained, the best of them on dev (WiSE-FT: Wortsman et al. 2022, "Robust
fine-tuning of zero-shot models", weight-space ensembles).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from anmi_ray.models.lora import is_adapter_input

Weights = Mapping[str, Tensor]
NO_DEV = (
    "{group}.interpolate chooses between the start and the trained weights on dev, and no dev query is judged: the "
    "trained weights are exported; give the collection judged dev queries"
)
START_IS_BEST = (
    "nothing trained was better on dev than the start ({start:.4f}; the trained weights alone {trained:.4f}): the "
    "start is exported as it was, because {group}.interpolate holds 0"
)
START_STAYS = (
    "no step was better on dev than the start ({dev:.4f}): the start is exported as it was, because {group}.dev_points "
    "holds 0"
)


def copied(network: nn.Module) -> dict[str, Tensor]:
    """The network's weights by name, a copy on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in network.state_dict().items()}


@torch.no_grad()
def mix(network: nn.Module, start: Weights, trained: Weights, share: float) -> None:
    """Give `network` the weights (1 - share) start + share trained; at the shares 0 and 1 exactly the one or the other.

    Of an adapter s B A, which starts at B = 0, A stays as trained: with B mixed, the merged weights W + share s B A are
    the mix of the merged ones. Buffers of whole numbers stay as trained.
    """
    for name, own in network.state_dict().items():
        end = trained[name]
        if share == 0:  # lerp would lose the sign of a zero
            end = start[name]
        elif share != 1 and end.is_floating_point() and not is_adapter_input(name):
            end = torch.lerp(start[name], end, share)
        own.copy_(end)


def take_best_mix(
    network: nn.Module,
    start: Weights,
    trained: Weights,
    shares: Sequence[float],
    known: Mapping[float, float],
    measure: Callable[[], float],
) -> dict[float, float]:
    """Give `network` the best weights among the mixes at `shares` and the trained ones; by share, what compared them.

    `measure` gives the dev measure of the network as it is (larger is better), `known` those that need no measuring.
    All workers call it: they try the same shares in the same order.
    """
    dev = dict(known)
    for share in (*shares, 1.0):
        if share not in dev:
            mix(network, start, trained, share)
            dev[share] = measure()
    mix(network, start, trained, best_share(dev))
    return dev


def best_share(dev: Mapping[float, float]) -> float:
    """The share whose dev measure is best, of equal ones the largest.

    >>> best_share({0.0: 0.4, 0.5: 0.6, 1.0: 0.6})
    1.0
    """
    return max(dev, key=lambda share: (dev[share], share))
