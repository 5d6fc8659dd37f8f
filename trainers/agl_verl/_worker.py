"""verl's training worker, extended by methods for its settings and its weights."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from agl_torch.adapters import ADAPTER_FILE
from safetensors.torch import save_file

from agl_verl import _compat


class Actor(_compat.ActorRolloutRefWorker):
    """Trains a policy and sends its weights to the replicas; one process per device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if _compat.get_platform().device_name == "cpu" and not torch.distributed.is_initialized():
            # verl would request gloo twice, once for the CPU and once for the device.
            torch.distributed.init_process_group(
                backend="gloo",
                rank=int(os.environ["RANK"]),
                world_size=int(os.environ["WORLD_SIZE"]),
                init_method=os.environ.get("DIST_INIT_METHOD"),
            )

    @_compat.register(dispatch_mode=_compat.Dispatch.ONE_TO_ALL)
    def data_parallel_size(self) -> int:
        """Return the number of ranks that share a batch."""
        return int(self.actor.engine.get_data_parallel_size())

    @_compat.register(dispatch_mode=_compat.Dispatch.ONE_TO_ALL)
    def reconfigure(self, actor: Any) -> None:
        """Train with the loss and the optimizer settings of this ``actor_rollout_ref.actor``.

        Weights and the optimizer's moments stay.
        """
        settings = _compat.omega_conf_to_dataclass(actor)
        settings.model_config = self.actor.model_config
        self.actor.set_loss_fn(partial(_compat.ppo_loss, config=settings))
        engine = self.actor.engine
        engine.optimizer_config.clip_grad = settings.optim.clip_grad
        set_rates(engine.optimizer, engine.lr_scheduler, settings.optim)

    @_compat.register(dispatch_mode=_compat.Dispatch.ONE_TO_ALL)
    def fingerprint(self) -> str:
        """Return the sha256 over names, dtypes, shapes and bytes, in ascending order of names."""
        tensors, _ = self.actor.engine.get_per_tensor_param(base_sync_done=True)
        digests = {name: _digest(name, tensor) for name, tensor in tensors}
        total = hashlib.sha256()
        for name in sorted(digests):
            total.update(digests[name])
        return total.hexdigest()

    @_compat.register(dispatch_mode=_compat.Dispatch.ONE_TO_ALL)
    def write_merged(self, directory: str) -> None:
        """Write the weights with the adapter merged."""
        tensors, _ = self.actor.engine.get_per_tensor_param(base_sync_done=True)
        merged = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        if _is_first():
            save_file(merged, Path(directory) / "model.safetensors", metadata={"format": "pt"})

    @_compat.register(dispatch_mode=_compat.Dispatch.ONE_TO_ALL)
    def write_adapter(self, directory: str) -> None:
        """Write only the adapter, in peft's format."""
        engine = self.actor.engine
        lora = engine.model_config.lora
        lora["merge"] = False  # makes verl return the adapter's tensors
        try:
            tensors, _ = engine.get_per_tensor_param(base_sync_done=True)
            adapter = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors}
        finally:
            lora["merge"] = True
        if _is_first():
            Path(directory).mkdir(parents=True, exist_ok=True)
            save_file(adapter, Path(directory) / ADAPTER_FILE, metadata={"format": "pt"})
            model = getattr(engine.module, "_fsdp_wrapped_module", engine.module)
            model.peft_config["default"].save_pretrained(directory)


def set_rates(
    optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LambdaLR, settings: Any
) -> None:
    """Set learning rate and weight decay as if the optimizer had been made with `settings`.

    The schedule continues where it is, now relative to the new learning rate.
    """
    given = settings.override_optimizer_config or {}  # verl prefers it when it makes an optimizer
    base = given.get("lr", settings.lr)
    schedule.base_lrs = [base for _ in optimizer.param_groups]
    for group, factor in zip(optimizer.param_groups, schedule.lr_lambdas, strict=True):
        group["initial_lr"] = base
        group["weight_decay"] = given.get("weight_decay", settings.weight_decay)
        rate = base * factor(schedule.last_epoch)
        if isinstance(group["lr"], torch.Tensor):  # an optimizer of torchao
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _is_first() -> bool:
    """Return whether this process is rank 0, which writes files for all ranks."""
    return int(os.environ.get("RANK", "0")) == 0


def _digest(name: str, tensor: torch.Tensor) -> bytes:
    digest = hashlib.sha256(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()
