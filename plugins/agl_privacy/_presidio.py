"""Names of people by presidio-analyzer, with a spaCy model that the user has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any, Final

from agl_core.errors import ConfigError, MissingExtraError
from agl_core.text import replaced
from agl_privacy._find import Finder

_PERSON: Final = "PERSON"
_LARGEST: Final = 50_000
"""Characters that are read at once: spaCy refuses a million."""
_WORD: Final = re.compile(r"\w")


def presidio_names(model: str) -> Finder:
    """Return what finds names of people by a spaCy model, which is installed or in a directory.

    Nothing is downloaded.

    Raises:
        ConfigError: the model is not there, cannot be loaded, or knows no names of people.
        MissingExtraError: presidio-analyzer is not installed.
    """
    if find_spec("presidio_analyzer") is None:
        extra = "privacy-presidio"
        raise MissingExtraError("privacy", needs="presidio-analyzer", extra=extra)
    nlp = _loaded(model)
    engine, language = _engine(nlp, model), nlp.lang
    turn = RLock()
    """spaCy's models are not made for several threads. What they log may be masked by them."""

    def find(text: str) -> Iterator[tuple[int, int]]:
        for start, piece in _pieces(replaced(text)):
            with turn:
                found = engine.analyze(piece, language, entities=[_PERSON])
            for each in found:
                if _WORD.search(piece, each.start, each.end):  # else it is masked already
                    yield start + each.start, start + each.end

    return find


def _loaded(model: str) -> Any:
    """Load the model, which presidio would download if it were not there."""
    spacy: Any = import_module("spacy")
    where = f"Configuration: privacy.presidio_models has {model!r}"
    path = Path(model).expanduser()
    if not spacy.util.is_package(model) and not path.exists():
        raise ConfigError(
            f"{where}, which is not installed: run python -m spacy download {model}, or give the "
            f"directory of a model"
        )
    try:
        return spacy.load(path if path.exists() else model)
    except (ImportError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}, which spaCy cannot load: {reason}") from error


def _engine(nlp: Any, model: str) -> Any:
    """Return an analyzer whose only recogniser is the model."""
    presidio: Any = import_module("presidio_analyzer")
    engines: Any = import_module("presidio_analyzer.nlp_engine")
    recognizers: Any = import_module("presidio_analyzer.predefined_recognizers")
    settings = engines.NerModelConfiguration()
    makers = nlp.analyze_pipes(keys=["assigns"])["attrs"].get("doc.ents", {}).get("assigns", [])
    labels = {label for maker in makers for label in nlp.pipe_labels.get(maker, ())}
    mapping = settings.model_to_presidio_entity_mapping
    people = {label for label in labels if mapping.get(label) == _PERSON}
    if not makers or (labels and not people):
        known = f"only {', '.join(sorted(labels))}" if labels else "no entities"
        raise ConfigError(
            f"Configuration: privacy.presidio_models has {model!r}, which finds {known} and no "
            f"names of people: name a model with the label PERSON or PER"
        )
    settings.labels_to_ignore = sorted(labels - people)
    engine = engines.SpacyNlpEngine(ner_model_configuration=settings)
    engine.nlp = {nlp.lang: nlp}
    names = recognizers.SpacyRecognizer(nlp.lang, supported_entities=[_PERSON])
    registry = presidio.RecognizerRegistry([names], supported_languages=[nlp.lang])
    return presidio.AnalyzerEngine(registry, engine, supported_languages=[nlp.lang])


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield pieces that end between words, with their positions."""
    start = 0
    while start < len(text):
        end = start + _LARGEST
        if end < len(text):
            end = max(text.rfind("\n", start, end), text.rfind(" ", start, end)) + 1 or end
            # a text without spaces is cut anywhere
        yield start, text[start:end]
        start = end
