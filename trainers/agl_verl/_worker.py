"""verl's training worker, extended by methods for its weights."""

from __future__ import annotations

import hashlib
import os
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


def _is_first() -> bool:
    """Return whether this process is rank 0, which writes files for all ranks."""
    return int(os.environ.get("RANK", "0")) == 0


def _digest(name: str, tensor: torch.Tensor) -> bytes:
    digest = hashlib.sha256(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    digest.update(flat.view(torch.uint8).numpy().data)
    return digest.digest()
