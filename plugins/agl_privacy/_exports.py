"""``--mask`` of the commands that export records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from agl_core.config import RunConfig, validate
from agl_core.interfaces import StoreLifecycle
from agl_privacy._layer import MaskedView
from agl_privacy._masker import Masker
from agl_privacy._options import PrivacyOptions


def rows_option() -> click.Option:
    """Make the option of ``agl rollouts export``."""

    def cleaning(config: RunConfig | None) -> Callable[[Any], Any]:
        return masker_of(config).value

    return _option(
        {"agl_records.cleaning": cleaning},
        help="Mask personal data, as [privacy] of the run says; rows whose token ids would still say "
        "it are left out.",
    )


def store_option() -> click.Option:
    """Make the option of ``agl store export``."""

    def view(store: StoreLifecycle, config: RunConfig | None) -> StoreLifecycle:
        return MaskedView(store, masker_of(config))

    return _option(
        {"agl_records.view": view},
        help="Mask personal data, as [privacy] of the run says, and leave out the token ids of calls "
        "that hold it.",
    )


def _option(meta: dict[str, Callable[..., Any]], *, help: str) -> click.Option:  # noqa: A002
    def use(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.meta.update(meta)

    return click.Option(["--mask"], is_flag=True, expose_value=False, callback=use, help=help)


def masker_of(config: RunConfig | None) -> Masker:
    """Return what masks as the section of a run says, or all kinds without one."""
    section = config.sections.get("privacy", {}) if config is not None else {}
    return Masker(validate(PrivacyOptions, section, where="privacy"))
