"""Optimiser steps by DeepSpeed (ZeRO stages 0 to 3) or plain torch (DDP), behind one interface.

Every worker calls the same methods in the same order: `accumulate` per micro-batch, then `step`. Gradients are averaged
over workers, so losses are scaled by the number of workers.
"""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anmi_ray.config.learning import LearnConfig, Offload
from anmi_ray.config.train import offload_needs
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, StoreError, TrainingError
from anmi_ray.training.module import Inputs, Learner, copied, parameter_groups

Objective = Callable[..., Tensor]  # (outputs of the module, such as score[N] and predicted[N]) -> scalar loss
_STATE = "state.pt"
_CLIP = 1.0  # largest norm of the gradient


class Engine(ABC):
    """Takes optimiser steps on `module`; `forward` is the module as the engine calls it."""

    forward: Callable[..., tuple[Tensor, ...]]

    def __init__(self, module: Learner, config: LearnConfig) -> None:
        self.module = module
        self.config = config
        self.device = module.device
        grouped = dist.is_initialized()
        self.rank = dist.get_rank() if grouped else 0
        self.world = dist.get_world_size() if grouped else 1
        self.groups = parameter_groups(module, config)
        self.parameters: list[nn.Parameter] = [one for group in self.groups for one in group["params"]]
        self.rates = [float(group["lr"]) for group in self.groups]

    @abstractmethod
    def accumulate(self, batches: Inputs, objective: Objective, last: bool) -> None:
        """Add the gradient of `objective` of the module's outputs; `last` marks the step's last call."""

    @torch.no_grad()
    def scores(self, batches: Inputs) -> tuple[Tensor, ...]:
        """Outputs of the module without a gradient. All workers call it."""
        return self.forward(batches)

    @abstractmethod
    def step(self, factor: float) -> float:
        """Update the weights with learning rates times `factor`; return the gradient's norm before clipping."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write this worker's part of weights and optimiser to `folder`. All workers call it."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read what `save` wrote. Raises StoreError if it is missing."""

    def weights(self) -> dict[str, Tensor]:
        """Copy the network's whole weights, float32, to the CPU of every worker."""
        return copied(self.module.network)

    def trained(self) -> Iterator[nn.Parameter]:
        """The network's trained parameters, each whole while it is yielded. All workers iterate over all of them."""
        yield from (parameter for parameter in self.module.network.parameters() if parameter.requires_grad)

    def sums(self, values: list[float]) -> list[float]:
        """Sum each value over the workers."""
        if self.world == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def gather(self, value: Any) -> list[Any]:
        """Every worker's `value`, in order of rank, on all workers."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def over_rows(self, rows: int, compute: Callable[[NDArray[np.int64]], NDArray[Any]]) -> NDArray[Any]:
        """Return `compute` of all `rows`, each worker computing its share (rank, rank + world, ...)."""
        share = compute(np.arange(rows)[self.rank :: self.world])
        values = np.zeros((rows, *share.shape[1:]), dtype=share.dtype)
        for worker, part in enumerate(self.gather(share)):
            values[worker :: self.world] = part
        return values

    def _set_rates(self, optimizer: Any, factor: float) -> None:
        for group, rate in zip(optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor


BETAS = (0.9, 0.98)  # RoBERTa's; .999 would average over more steps than a fine-tuning has


class TorchEngine(Engine):
    """AdamW of torch, with DistributedDataParallel for several workers."""

    def __init__(self, module: Learner, config: LearnConfig) -> None:
        super().__init__(module, config)
        self.optimizer = torch.optim.AdamW(self.groups, betas=BETAS, fused=True)
        self.forward = module if self.world == 1 else _synchronised(module)

    def accumulate(self, batches: Inputs, objective: Objective, last: bool) -> None:
        forward = self.forward
        with forward.no_sync() if isinstance(forward, DistributedDataParallel) and not last else nullcontext():
            (objective(*self.forward(batches)) * self.world).backward()

    def step(self, factor: float) -> float:
        norm = nn.utils.clip_grad_norm_(self.parameters, _CLIP)
        self._set_rates(self.optimizer, factor)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(norm)

    def save(self, folder: Path) -> None:
        if self.rank == 0:
            torch.save({"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}, folder / _STATE)

    def load(self, folder: Path) -> None:
        path = folder / _STATE
        if not path.is_file():
            raise StoreError("holds no training state", str(folder), "remove the checkpoints and train anew")
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])


def _synchronised(module: Learner) -> DistributedDataParallel:
    """Average gradients over workers, except of parameters without one, for which DDP would wait.

    They stay in the optimiser's groups, so checkpoints do not depend on the number of workers.
    """
    for parameter in module.idle():
        parameter.requires_grad_(False)
    return DistributedDataParallel(module)


class DeepSpeedEngine(Engine):
    """DeepSpeed's engine; the caller marks the end of a step."""

    def __init__(self, module: Learner, config: LearnConfig, offload: Offload = "none") -> None:
        super().__init__(module, config)
        deepspeed = _deepspeed()
        os.environ.setdefault("LOCAL_RANK", "0")
        if not dist.is_initialized():  # DeepSpeed needs a process group and would look for MPI
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        settings = deepspeed_json(config, offload, sum(parameter.numel() for parameter in self.parameters))
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=module, model_parameters=self.groups, config=settings, dist_init_required=False
        )
        self.forward = self.engine
        self.engine.checkpoint_engine = _data_only(self.engine.checkpoint_engine)
        self._norm = 0.0
        if config.zero_stage == 0:  # without ZeRO DeepSpeed clips but does not report the norm
            self.optimizer.register_step_pre_hook(self._clip)

    def _clip(self, *_: Any) -> None:
        self._norm = float(nn.utils.clip_grad_norm_(self.parameters, _CLIP))

    def accumulate(self, batches: Inputs, objective: Objective, last: bool) -> None:
        loss = objective(*self.engine(batches)) * self.world
        self.engine.backward(loss)

    def step(self, factor: float) -> float:
        self._set_rates(self.optimizer, factor)
        self.engine.step()
        return self._norm if self.config.zero_stage == 0 else float(self.engine.get_global_grad_norm() or 0.0)

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag="engine")

    def load(self, folder: Path) -> None:
        path, _ = self.engine.load_checkpoint(str(folder), tag="engine")
        if path is None:
            raise StoreError("holds no DeepSpeed state", str(folder), "remove the checkpoints and train anew")

    def weights(self) -> dict[str, Tensor]:
        if self.config.zero_stage < 3:
            return super().weights()
        with _deepspeed().zero.GatheredParameters(list(self.module.network.parameters())):
            return super().weights()

    def trained(self) -> Iterator[nn.Parameter]:
        for parameter in super().trained():
            with _deepspeed().zero.GatheredParameters([parameter], enabled=self.config.zero_stage == 3):
                yield parameter


def make_engine(module: Learner, config: LearnConfig, offload: Offload = "none") -> Engine:
    """Return the configured engine; several workers must have joined torch.distributed.

    Raises ConfigError if `offload` needs another engine or ZeRO stage.
    """
    if wrong := offload_needs(offload, config):
        raise ConfigError(wrong, "execution.train.offload", "change these, or set offload: none")
    return DeepSpeedEngine(module, config, offload) if config.engine == "deepspeed" else TorchEngine(module, config)


def deepspeed_json(config: LearnConfig, offload: Offload, parameters: int) -> dict[str, Any]:
    """DeepSpeed's settings; bfloat16 is autocast inside the module, so master weights and head stay float32."""
    adam = {"torch_adam": True, "lr": config.learning_rate, "betas": list(BETAS), "fused": True}
    bucket = min(parameters, 500_000_000)  # elements; DeepSpeed's default reserves 2 GB for any model
    zero: dict[str, Any] = {"stage": config.zero_stage, "overlap_comm": False, "reduce_bucket_size": bucket}
    if offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "parameters":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": _CLIP if config.zero_stage else 0.0,
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": adam},  # torch's Adam: DeepSpeed's own compiles C++ when first used
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1_000_000_000,
    }


def _deepspeed() -> Any:
    """Import DeepSpeed quietly, without its shared-memory collective, an inference operator that it would compile."""
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(tempfile.gettempdir()) / f"torch-extensions-{os.getuid()}"))
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # its import uses what torch deprecates
            import deepspeed
            import deepspeed.ops
    except ImportError as error:
        raise TrainingError(
            f"DeepSpeed cannot be imported: {error}",
            "train.engine",
            f"{environment.install('deepspeed')}, or engine: ddp",
        ) from error
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _data_only(checkpoints: Any) -> Any:
    """Make DeepSpeed's checkpoint reader load plain data and three classes only; its own runs code in files."""
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    def load(path: str, map_location: Any = None) -> Any:
        with torch.serialization.safe_globals([LossScaler, ZeroStageEnum, fragment_address]):
            return torch.load(path, map_location=map_location, weights_only=True)

    checkpoints.load = load
    return checkpoints
