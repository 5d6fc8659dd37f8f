"""The options of the section ``[privacy]``."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

KINDS: Final = ("email", "phone", "address", "postal", "name")
"""Kinds of personal data that have a switch each."""


class MaskOptions(BaseModel):
    """What counts as personal data."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    email: bool = True
    """Addresses of e-mail: ``john@example.com`` becomes ``j***@e*****e.com``."""
    phone: bool = True
    """Phone numbers: every digit becomes ``*``. Those with ``+`` and the code of a country, and
    those of `regions`."""
    address: bool = True
    """IP addresses: ``192.168.1.1`` becomes ``192.***.*.1``. Those by which a machine names itself,
    such as ``127.0.0.1``, stay."""
    postal: bool = True
    """Postal addresses of the US, the United Kingdom, Germany and France: a street with a number, and
    a postcode with its city. ``10 Downing Street, London SW1A 2AA`` becomes
    ``** ******* ******, ****** **** ***``."""
    name: bool = True
    """Names that `names`, `names_file`, `presidio_models` or `recognizers` find: ``Anna`` becomes
    ``A**a``."""
    regions: list[str] = Field(default_factory=list[str])
    """Regions whose national phone numbers count too, such as ``US``; needs the extra ``privacy``."""
    names: list[str] = Field(default_factory=list[str])
    """Names of people; upper and lower case count alike."""
    names_file: str | None = None
    """File with one name per line."""
    presidio_models: list[str] = Field(default_factory=list[str])
    """spaCy models, installed or in a directory, by which presidio-analyzer finds names of people,
    such as ``en_core_web_sm``; needs the extra ``privacy-presidio``."""
    recognizers: list[str] = Field(default_factory=list[str])
    """``module:function`` or ``file.py:function``, called with a text: it returns pairs of start and
    end, which are masked as names are."""


class PrivacyOptions(MaskOptions):
    """Where personal data is masked in a run."""

    order: ClassVar[int] = 100
    """Texts are masked before another layer changes them."""

    logs: bool = True
    """Mask the logs of agl-core and its plugins while the run lasts. Without this section they are
    masked too, unless ``AGL_MASK_LOGS`` is ``off`` or names the kinds to mask."""
    reinforcement: Literal["drop", "count", "off"] = "drop"
    """What happens to calls with personal data in a message, a tool or an answer: they are left out
    of the loss, only counted, or not searched for."""
    imitation: bool = True
    """Mask the conversations that are imitated; what has recorded tokens is left out, as tokens
    cannot be masked."""
    reflection: bool = True
    """Mask what critics and editors of prompts read."""
    events: bool = True
    """Mask the events of ``[events]``."""
    store: bool = False
    """Mask texts before they are stored; token ids stay as they were sampled."""
