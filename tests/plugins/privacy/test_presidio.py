"""Names by the real presidio-analyzer, with a small spaCy model that the tests make."""

import logging
from pathlib import Path
from typing import Any

import pytest
from agl_privacy import Masker, MaskOptions, mask_logs

from agl_core.errors import ConfigError, MissingExtraError

ANNA = {"label": "PERSON", "pattern": [{"LOWER": "anna"}, {"LOWER": "schmidt"}]}
ACME = {"label": "ORG", "pattern": "Acme"}


def model(folder: Path, *patterns: Any, language: str = "en") -> str:
    spacy = pytest.importorskip("spacy")
    nlp = spacy.blank(language)
    if patterns:
        nlp.add_pipe("entity_ruler").add_patterns(list(patterns))
    nlp.to_disk(folder)
    return str(folder)


def masker(*models: str, **options: Any) -> Masker:
    pytest.importorskip("presidio_analyzer")
    return Masker(MaskOptions(presidio_models=[*models], **options))


def test_names_that_the_model_finds_are_masked(tmp_path: Path) -> None:
    by = masker(model(tmp_path / "en", ANNA, ACME))
    text = "\ud800 Anna Schmidt of Acme, **ANNA SCHMIDT** \x00 and Anna"
    masked = by.text(text)
    assert masked == "\ud800 A**a S*****t of Acme, **A**A S*****T** \x00 and Anna"
    assert by.text(masked) == masked
    assert by.holds({"who": ["Anna Schmidt"]})
    assert not by.holds("Acme")


def test_several_languages_stand_side_by_side(tmp_path: Path) -> None:
    german = {"label": "PER", "pattern": "Jörg Groß"}
    by = masker(model(tmp_path / "en", ANNA), model(tmp_path / "de", german, language="de"))
    assert by.text("Jörg Groß met Anna Schmidt") == "J**g G**ß met A**a S*****t"


def test_long_texts_are_read_in_pieces(tmp_path: Path) -> None:
    by = masker(model(tmp_path / "en", ANNA))
    text = "x" * 120_000 + " Anna Schmidt " + "word\n" * 10_000 + "Anna Schmidt"
    masked = by.text(text)
    assert len(masked) == len(text)
    assert masked.count("A**a S*****t") == 2
    assert "Anna" not in masked


def test_the_switch_of_names_counts(tmp_path: Path) -> None:
    by = masker(model(tmp_path / "en", ANNA), name=False)
    assert by.text("Anna Schmidt") == "Anna Schmidt"


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ([], "finds no entities and no names of people"),
        ([ACME], "finds only ORG and no names of people"),
    ],
)
def test_a_model_that_knows_no_names_is_refused(
    tmp_path: Path, patterns: list[Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        masker(model(tmp_path / "en", *patterns))


def test_a_model_that_is_not_there_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = pytest.importorskip("spacy.cli")
    monkeypatch.setattr(cli, "download", lambda *_: pytest.fail("it is fetched"))
    with pytest.raises(ConfigError) as caught:
        masker("en_core_web_none")
    assert str(caught.value) == (
        "Configuration: privacy.presidio_models has 'en_core_web_none', which is not installed: "
        "run python -m spacy download en_core_web_none, or give the directory of a model"
    )
    with pytest.raises(ConfigError, match=r"which spaCy cannot load: .*meta\.json") as caught:
        masker(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_privacy._presidio.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'agl-core\[privacy-presidio\]"):
        Masker(MaskOptions(presidio_models=["en_core_web_sm"]))


def test_logs_are_masked_by_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("presidio_analyzer")
    options = MaskOptions(presidio_models=[model(tmp_path / "en", ANNA)])
    with caplog.at_level(logging.DEBUG):
        mask_logs("", options=options)
        logging.getLogger("mine").warning("Anna Schmidt")
    assert "Anna" not in caplog.text
    assert "A**a S*****t" in caplog.text


def test_the_model_may_log_while_it_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    presidio = pytest.importorskip("presidio_analyzer")
    analyze = presidio.AnalyzerEngine.analyze

    def chatty(self: Any, text: str, *args: Any, **kwargs: Any) -> Any:
        logging.getLogger("presidio-analyzer").warning("reads %s", text)
        return analyze(self, text, *args, **kwargs)

    options = MaskOptions(presidio_models=[model(tmp_path / "en", ANNA)])
    mask_logs("", options=options)
    by = Masker.shared(options)
    monkeypatch.setattr(presidio.AnalyzerEngine, "analyze", chatty)
    assert by.text("Anna Schmidt") == "A**a S*****t"
    assert "Anna" not in caplog.text
