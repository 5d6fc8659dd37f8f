"""The loss that an algorithm names."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from agl_core.errors import ConfigError
from agl_core.interfaces import AlgorithmSetup
from agl_torch.losses.base import Loss
from agl_torch.losses.cross_entropy import CrossEntropy, CrossEntropyOptions
from agl_torch.losses.policy_gradient import PolicyGradient, PolicyGradientOptions

_Entry = tuple[Callable[[Any], Loss], type[BaseModel]]

_LOSSES: Final = MappingProxyType[str, _Entry](
    {
        "policy_gradient": (PolicyGradient, PolicyGradientOptions),
        "cross_entropy": (CrossEntropy, CrossEntropyOptions),
    }
)


def make_loss(setup: AlgorithmSetup) -> Loss:
    """The loss `setup` names, with its options.

    Raises:
        ConfigError: there is no such loss, or an option is wrong.
    """
    if setup.loss_factory is not None:
        return setup.loss_factory(setup.loss_options)
    if setup.loss not in _LOSSES:
        raise ConfigError(f"Engine 'torch' has no loss {setup.loss!r}; it has {sorted(_LOSSES)}")
    factory, model = _LOSSES[setup.loss]
    try:
        return factory(model.model_validate(dict(setup.loss_options)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(
            f"Option {'.'.join(map(str, first['loc']))!r} of loss {setup.loss!r}: {first['msg']}"
        ) from error
