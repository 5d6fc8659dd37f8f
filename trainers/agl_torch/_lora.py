"""Low-rank adapters (peft) of several policies over one frozen model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from peft.tuners.lora import LoraLayer, LoraModel
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import Parameter
from transformers import PreTrainedModel

from agl_core.errors import ConfigError
from agl_torch._forward import CausalModel
from agl_torch._weights import fingerprint, plain_tensors, write_model
from agl_torch.adapters import ADAPTER_FILE, PREFIX, check_base, read_adapter, write_base
from agl_torch.options import LoraOptions
from agl_torch.sources import ADAPTER


class SharedBase:
    """A frozen model with any number of adapters, of which at most one is active."""

    def __init__(self, model: PreTrainedModel, source: str) -> None:
        """Wrap a model.

        Args:
            model: The loaded model.
            source: Directory or hub name it was loaded from; saved adapters name it.
        """
        self.model = model
        self.source = str(Path(source).absolute()) if Path(source).is_dir() else source
        self._sha256 = ""
        self._tuner: LoraModel | None = None
        self._adapters: dict[str, str] = {}
        """peft's adapter name by policy. Generated, because peft searches the parts of weights'
        names for it, and a policy's name could be equal to a layer's."""
        self._active: str | None = None

    def attach(self, policy: str, options: LoraOptions, *, seed: int) -> None:
        """Add a float32 adapter for `policy` that initially leaves the model's output unchanged.

        Raises:
            ConfigError: no layer matches `options.targets`, or the adapter could not be merged.
        """
        adapter = self._adapters[policy] = f"policy_{len(self._adapters)}"
        config = LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,
            target_modules=options.targets,
            task_type="CAUSAL_LM",
            base_model_name_or_path=self.source,
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                self._inject(adapter, config)
            except ValueError as error:
                raise ConfigError(
                    f"engine.lora.targets {options.targets!r} fit no layer of the model ({error}): "
                    f"name endings such as 'q_proj', or 'all-linear'"
                ) from error
        self._check_embeddings(options)
        for _, parameter in self.parameters(adapter):
            # In bfloat16, rounding would discard most of each optimizer step.
            parameter.data = parameter.data.float()
        self._active = adapter
        self.activate(None)

    def _check_embeddings(self, options: LoraOptions) -> None:
        """Raise for an adapter on an embedding, or on a head tied to the embedding."""
        tied = getattr(self.model.config, "tie_word_embeddings", False)
        if tied and isinstance(self.model.get_output_embeddings(), LoraLayer):
            raise ConfigError(
                f"engine.lora.targets {options.targets!r} name the output head, which this model "
                f"shares with its input, so the adapter could not be merged: leave it out"
            )
        if any(isinstance(layer.get_base_layer(), nn.Embedding) for layer in self.layers()):
            raise ConfigError(
                f"engine.lora.targets {options.targets!r} name an embedding, but only linear "
                f"layers take an adapter: leave it out"
            )

    def _inject(self, adapter: str, config: LoraConfig) -> None:
        if self._tuner is None:
            self._tuner = LoraModel(self.model, {adapter: config}, adapter)
        else:
            self._tuner.peft_config[adapter] = config
            self._tuner.inject_adapter(self.model, adapter)

    def activate(self, adapter: str | None) -> None:
        """Activate one adapter, or deactivate all."""
        if adapter == self._active:
            return
        for layer in self.layers():
            layer.enable_adapters(enabled=adapter is not None)
            if adapter is not None:
                layer.set_adapter(adapter)
        self._active = adapter

    def adapter(self, policy: str) -> str:
        """Return peft's name of the adapter of `policy`."""
        return self._adapters[policy]

    def parameters(self, adapter: str) -> list[tuple[str, Parameter]]:
        """Return an adapter's weights under names that do not contain the adapter's name."""
        ending = f".{adapter}.weight"
        return [
            (name.removesuffix(ending) + ".weight", parameter)
            for name, parameter in self.model.named_parameters()
            if ".lora_" in name and name.endswith(ending)
        ]

    def layers(self) -> Iterator[LoraLayer]:
        """Yield the layers that have an adapter."""
        yield from (layer for layer in self.model.modules() if isinstance(layer, LoraLayer))

    @property
    def sha256(self) -> str:
        """Fingerprint of the frozen weights, computed once."""
        if not self._sha256:
            self._sha256 = fingerprint(plain_tensors(self.model))
        return self._sha256

    def without_adapter(self) -> CausalModel:
        """Return the frozen model."""
        return CausalModel(self.model, activate=lambda: self.activate(None))


class FrozenWeights:
    """The unchanged weights of a shared model."""

    def __init__(self, base: SharedBase) -> None:
        """Serve `base` without adapters."""
        self._base = base
        self.serving = self.training = base.without_adapter()

    @property
    def model(self) -> PreTrainedModel:
        return self._base.model

    def parameters(self) -> list[tuple[str, Parameter]]:
        return []

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from plain_tensors(self._base.model)

    def publish(self) -> None:
        """Do nothing: frozen weights do not change."""

    def save(self, directory: Path, *, whole: bool = True) -> None:
        del whole  # a frozen policy has no adapter to save alone
        write_model(self.model, dict(self.tensors()), directory)

    def load(self, directory: Path) -> None:
        raise ConfigError(f"A frozen policy cannot take over the weights in {str(directory)!r}")


class LoraWeights:
    """One policy's adapter on a shared base model."""

    def __init__(self, base: SharedBase, policy: str) -> None:
        """Use the adapter of `policy`, which must be attached to `base`."""
        self._base = base
        self._adapter = adapter = base.adapter(policy)
        self.serving = CausalModel(base.model, activate=lambda: base.activate(adapter))
        self.training = self.serving

    @property
    def model(self) -> PreTrainedModel:
        return self._base.model

    def parameters(self) -> list[tuple[str, Parameter]]:
        return self._base.parameters(self._adapter)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from plain_tensors(self._base.model)
        yield from self.parameters()

    def publish(self) -> None:
        """Do nothing: the served adapter is the trained one."""

    def save(self, directory: Path, *, whole: bool = True) -> None:
        """Write the adapter, and also the merged model if `whole`."""
        if whole:
            write_model(self.model, self._merged(), directory)
        target = directory / ADAPTER
        target.mkdir(parents=True, exist_ok=True)
        state = {f"{PREFIX}{name}": tensor.contiguous() for name, tensor in self._state().items()}
        save_file(state, target / ADAPTER_FILE)
        self.model.peft_config[self._adapter].save_pretrained(str(target))
        base = self._base
        write_base(target, model=base.source, dtype=self.model.dtype, sha256=base.sha256)

    def load(self, directory: Path) -> None:
        path = directory / ADAPTER / ADAPTER_FILE
        if not path.is_file():
            raise ConfigError(
                f"{str(directory)!r} holds no adapter ({path.name} is missing): it was saved by a "
                f"run that trained all weights; set engine.lora to none to load it"
            )
        check_base(directory, dtype=self.model.dtype, sha256=self._base.sha256)
        read = read_adapter(directory)
        state = {name.removeprefix(PREFIX): tensor for name, tensor in read.items()}
        if odd := sorted(set(state) ^ set(self._state())):
            raise ConfigError(
                f"Adapter {str(path)!r} does not fit the model: {odd[0]!r} and {len(odd) - 1} more "
                f"are on one side only; use the engine.lora it was saved with"
            )
        set_peft_model_state_dict(self.model, state, adapter_name=self._adapter)

    def _state(self) -> dict[str, Tensor]:
        """Return the adapter's weights under peft's names."""
        # The default "auto" requests the model's configuration from the hub to decide about
        # embeddings, which never have an adapter.
        return get_peft_model_state_dict(
            self.model, adapter_name=self._adapter, save_embedding_layers=False
        )

    @torch.no_grad()
    def _merged(self) -> dict[str, Tensor]:
        """Return every weight, with the adapter's product added to the adapted layers.

        Weights without an adapter are the model's own tensors; the sums are on the CPU.
        """
        merged = dict(plain_tensors(self._base.model))
        for name, layer in self._base.model.named_modules():
            if isinstance(layer, LoraLayer):
                weight = merged[f"{name}.weight"]
                adapted: Any = layer
                delta = adapted.get_delta_weight(self._adapter)
                total = (weight.float() + delta.float()).to(weight.dtype)
                merged[f"{name}.weight"] = total.cpu()
        return merged
