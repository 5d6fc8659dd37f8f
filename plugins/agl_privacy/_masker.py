"""Masking of texts and of JSON values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakValueDictionary

import msgspec

from agl_core.config import load_object, read_text
from agl_core.errors import ConfigError
from agl_privacy._find import Finder, PersonalData, emails, named, network_addresses, phones
from agl_privacy._masks import MASKS, everything, name
from agl_privacy._options import MaskOptions
from agl_privacy._postal import postal_addresses
from agl_privacy._presidio import presidio_names

_PASSES: Final = 8
"""A masked text is masked again until nothing is found, so that masking twice changes nothing."""
_HEAD: Final = 200
"""Characters in which a text says that it is an image or another file."""
_SHARED: Final = WeakValueDictionary[str, "Masker"]()
"""Those that are in use, by their options."""
_HIDDEN: Final = "***"
"""Stands for a value that is nested too deeply to be read."""


class Masker:
    """Finds personal data in texts and masks it. Token ids and other numbers are never read."""

    def __init__(self, options: MaskOptions | None = None) -> None:
        """Read the names and load the recognisers.

        Raises:
            ConfigError: a file, a name, a region or a recogniser is wrong.
            MissingExtraError: an option needs an extra that is not installed.
        """
        self.options = options or MaskOptions()
        self._finders = [*_finders(self.options)]

    @classmethod
    def shared(cls, options: MaskOptions) -> Masker:
        """Return one that is in use with equal options and files, else a new one.

        The parts of a run share one, because a recogniser may have a model to load.

        Raises:
            ConfigError, MissingExtraError: see `Masker`.
        """
        key = _key(options)
        masker = _SHARED.get(key)
        if masker is None:
            masker = _SHARED[key] = cls(options)
        return masker

    def find(self, text: str) -> list[PersonalData]:
        """Return what a text holds, in order; ranges that overlap are one.

        Raises:
            ConfigError: a recogniser of the user raised, or returned no ranges.
        """
        if text.startswith("data:") and ";base64," in text[:_HEAD]:
            return []
        found = [
            PersonalData(start, end, kind)
            for kind, finder in self._finders
            for start, end in finder(text)
            if start < end
        ]
        merged: list[PersonalData] = []
        for each in sorted(found):
            last = merged[-1] if merged else None
            if last is None or each.start >= last.end:
                merged.append(each)
            else:
                kind = last.kind if last.kind == each.kind else ""
                inside = each.end <= last.end and (last.start, last.end) != (each.start, each.end)
                merged[-1] = PersonalData(
                    last.start, max(last.end, each.end), last.kind if inside else kind
                )
        return merged

    def holds(self, value: Any) -> bool:
        """Return whether a text, or any text in a JSON value, holds personal data."""
        return any(self._holds(text) for text in texts(value))

    def text(self, text: str) -> str:
        """Return the text with personal data masked; without any, the text itself."""
        if text[:1] in "{[" and ("\\" in text or self.find(text)):
            masked = self._json(text)
            if masked is not None:
                return masked
        for _ in range(_PASSES):
            found = self.find(text)
            if not found:
                break
            text = _replaced(text, found)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value with all its texts masked, keys included; other values stay."""
        try:
            return self._value(value)
        except RecursionError:
            return _HIDDEN

    def _holds(self, text: str) -> bool:
        return bool(self.find(text)) or (text[:1] in "{[" and self.text(text) != text)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", value))
        if isinstance(value, list | tuple):
            items = cast("Sequence[Any]", value)
            numbers = all(isinstance(each, int | float) for each in items)
            return cast("Any", value) if numbers else [self._value(each) for each in items]
        if isinstance(value, msgspec.Struct):
            return self._value(msgspec.to_builtins(value))
        return value

    def _mapping(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        masked: dict[Any, Any] = {}
        for key, each in value.items():
            free = shown = self.text(key) if isinstance(key, str) else key
            number = 2
            while free in masked:
                free, number = f"{shown} ({number})", number + 1
            masked[free] = self._value(each)
        return masked

    def _json(self, text: str) -> str | None:
        """Return JSON with masked texts, the text itself if it holds none, or None for no JSON."""
        try:
            value = json.loads(text)
            masked = self._value(value)
            return text if masked == value else json.dumps(masked, ensure_ascii=False)
        except (ValueError, RecursionError):
            return None


def texts(value: Any) -> Iterable[str]:
    """Yield the texts in a JSON value or a record, keys included."""
    left = [value]
    while left:
        each: Any = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            items = cast("Mapping[Any, Any]", each)
            left += [*items.keys(), *items.values()]
        elif isinstance(each, list | tuple):
            left += [*cast("Sequence[Any]", each)]
        elif isinstance(each, msgspec.Struct):
            left.append(msgspec.structs.asdict(each))


def _key(options: MaskOptions) -> str:
    """Return the options as text, with the times at which their files were changed."""
    sources = [each.rpartition(":")[0] for each in options.recognizers]
    files = [options.names_file or "", *options.presidio_models, *sources]
    changed: list[int] = []
    for file in filter(None, files):
        try:
            changed.append(Path(file).expanduser().stat().st_mtime_ns)
        except (OSError, RuntimeError, ValueError):  # it is no file
            changed.append(0)
    return f"{options.model_dump_json(include={*MaskOptions.model_fields})} {changed}"


def _replaced(text: str, found: Sequence[PersonalData]) -> str:
    parts: list[str] = []
    at = 0
    for start, end, kind in found:
        mask = MASKS.get(kind, name) if kind else everything
        parts += [text[at:start], mask(text[start:end])]
        at = end
    return "".join([*parts, text[at:]])


def _finders(options: MaskOptions) -> Iterable[tuple[str, Finder]]:
    if options.email:
        yield "email", emails
    if options.phone:
        yield "phone", phones(options.regions)
    if options.address:
        yield "address", network_addresses
    if options.postal:
        yield "postal", postal_addresses
    if options.name:
        names = [*options.names]
        if options.names_file is not None:
            lines = read_text(Path(options.names_file).expanduser(), what="Names").splitlines()
            names += [line.strip() for line in lines if line.strip()]
        if names:
            yield "name", named(names)
        for model in options.presidio_models:
            yield "name", presidio_names(model)
        for reference in options.recognizers:
            yield "name", _checked(reference)


def _checked(reference: str) -> Finder:
    """Return a recogniser of the user, whose results are checked."""
    function = load_object(reference)
    if not callable(cast("object", function)):
        raise ConfigError(
            f"Configuration: privacy.recognizers has {reference!r}, which cannot be called: name a "
            f"function of a text"
        )

    def find(text: str) -> list[tuple[int, int]]:
        try:
            ranges = [(int(start), int(end)) for start, end in function(text)]
        except Exception as error:  # any error of the user's function; the message names it
            raise ConfigError(
                f"Recognizer {reference!r} failed: {type(error).__name__}. It gets a text and "
                f"returns pairs of start and end"
            ) from error
        for start, end in ranges:
            if not 0 <= start < end <= len(text):
                raise ConfigError(
                    f"Recognizer {reference!r} returned ({start}, {end}) for a text of {len(text)} "
                    f"characters: return pairs of start and end inside the text"
                )
        return ranges

    return find
