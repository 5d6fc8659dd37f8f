"""Variables of services in the environment of older programs."""

from __future__ import annotations

import logging
import os

import agl_compat
import pytest
from agl_compat._names import OldNameWarning, renamed
from agl_compat._services import bus_settings, database_settings
from agl_privacy import mask_logs

from agl_core.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore::agl_compat.OldNameWarning")
NAMES = (
    *("DATABASE_URL", "DB_POOL_SIZE", "DB_POOL_PRE_PING", "AGL_STORAGE"),
    *("EVENT_BUS_BACKEND", "REDIS_URL", "AGL_EVENTS_URL"),
    *(f"RABBITMQ_{name}" for name in ("HOST", "PORT", "USERNAME", "PASSWORD", "VHOST")),
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what a test's code sets is undone
        monkeypatch.delenv(name)
    renamed.cache_clear()
    yield
    renamed.cache_clear()


def test_without_variables_nothing_is_set():
    assert database_settings() == {}
    assert bus_settings() == {}


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("sqlite:///runs/a%20b.db", {"store.name": "sqlite", "store.path": "runs/a b.db"}),
        ("sqlite:////var/a.db?timeout=3", {"store.name": "sqlite", "store.path": "/var/a.db"}),
        ("sqlite+aiosqlite:///a.db", {"store.name": "sqlite", "store.path": "a.db"}),
        ("sqlite://", {"store.name": "memory"}),
        ("sqlite:///:memory:", {"store.name": "memory"}),
        (
            "PostgreSQL+psycopg2://u:p@h/d",
            {"store.name": "postgres", "store.url": "PostgreSQL+psycopg2://u:p@h/d"},
        ),
    ],
)
def test_database_url_chooses_the_store(monkeypatch, url, settings):
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.warns(OldNameWarning, match="AGL_STORE_URL"):
        assert database_settings() == settings


def test_options_of_the_pool_are_read_where_there_is_one(monkeypatch):
    monkeypatch.setenv("DB_POOL_SIZE", "3")
    monkeypatch.setenv("DB_POOL_PRE_PING", "false")
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    with pytest.warns(OldNameWarning) as warned:
        settings = database_settings()

    assert settings["store.pool_size"] == "3"
    assert settings["store.pool_pre_ping"] == "false"
    assert any("store.pool_size" in str(each.message) for each in warned)
    monkeypatch.setenv("DATABASE_URL", "sqlite:///a.db")
    assert "store.pool_size" not in database_settings()


@pytest.mark.parametrize("url", ["mysql://user:secret@host/db", "runs.db", "://"])
def test_a_database_that_no_plugin_serves_is_an_error(monkeypatch, url):
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(ConfigError, match=r"DATABASE_URL is .*no plugin serves it") as error:
        agl_compat.Trainer()
    assert "secret" not in str(error.value)


def test_an_older_name_of_the_storage_goes_before_the_database(monkeypatch, tmp_path):
    monkeypatch.setenv("AGL_STORAGE", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    assert agl_compat.LightningStore().settings() == {"directory": str(tmp_path)}


def test_a_training_keeps_its_records_in_the_database(monkeypatch, settings, tmp_path):
    monkeypatch.setenv("DATABASE_URL", f"sqlite:///{tmp_path / 'records.db'}")
    config = agl_compat.RLConfig(episodes=1, batch_size=2, learning_rate=1.0, settings=settings)
    trainer = agl_compat.GRPOTrainer(config=config)

    trainer.train(agl_compat.Agent("solver", "Answer."), eval_tasks=["math"], reward=says_yes)

    assert (tmp_path / "records.db").is_file()


def says_yes(task, output, attempt):
    return float(output == "yes")


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({"EVENT_BUS_BACKEND": "redis"}, "redis://localhost:6379/0"),
        ({"EVENT_BUS_BACKEND": "redis", "REDIS_URL": "redis://h:1/2"}, "redis://h:1/2"),
        ({"EVENT_BUS_BACKEND": "RabbitMQ"}, "amqp://guest:guest@localhost:5672/%2F"),
        (
            {
                "EVENT_BUS_BACKEND": "rabbitmq",
                "RABBITMQ_HOST": "mq",
                "RABBITMQ_PORT": "5673",
                "RABBITMQ_USERNAME": "a@b",
                "RABBITMQ_PASSWORD": "p/w",
                "RABBITMQ_VHOST": "runs",
            },
            "amqp://a%40b:p%2Fw@mq:5673/runs",
        ),
    ],
)
def test_the_event_bus_is_named_by_its_address(monkeypatch, variables, address):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.warns(OldNameWarning, match=r"\[events\]"):
        settings = bus_settings()

    assert settings == {"events.url_env": "AGL_EVENTS_URL"}
    assert os.environ["AGL_EVENTS_URL"] == address


def test_todays_address_of_the_bus_stays(monkeypatch):
    monkeypatch.setenv("EVENT_BUS_BACKEND", "redis")
    monkeypatch.setenv("AGL_EVENTS_URL", "redis://today/0")
    bus_settings()
    assert os.environ["AGL_EVENTS_URL"] == "redis://today/0"


def test_an_unknown_bus_is_an_error(monkeypatch):
    monkeypatch.setenv("EVENT_BUS_BACKEND", "kafka")
    with pytest.raises(ConfigError, match="'kafka': write redis or rabbitmq"):
        agl_compat.Trainer()


@pytest.mark.parametrize(
    ("value", "text"),
    [("", "*@*.org"), ("true", "*@*.org"), ("False", "a@b.org"), (" 0 ", "a@b.org")],
)
@pytest.mark.parametrize("set_up", [agl_compat.Trainer, agl_compat.configure_logger])
def test_masking_of_logs_is_switched_off_as_before(monkeypatch, value, text, set_up):
    before = logging.getLogRecordFactory()
    monkeypatch.setattr(logging, "_logRecordFactory", before)  # undone afterwards
    logging.setLogRecordFactory(logging.LogRecord)
    mask_logs(enabled=True)
    monkeypatch.setenv("AGENT_LIGHTNING_PII_MASKING_ENABLED", value)
    set_up()
    record = logging.getLogRecordFactory()("agl_core", 30, "f", 1, "a@b.org", None, None)
    assert record.getMessage() == text


def test_loggers_of_older_programs_are_masked_too(monkeypatch):
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
    logger = agl_compat.configure_logger(name="older")
    assert logger.name == "older"
    record = logging.getLogRecordFactory()("older.part", 30, "f", 1, "a@b.org", None, None)
    assert record.getMessage() == "*@*.org"


def test_another_value_is_an_error(monkeypatch):
    monkeypatch.setenv("AGENT_LIGHTNING_PII_MASKING_ENABLED", "maybe")
    with pytest.raises(ConfigError, match="'maybe': write true or false"):
        agl_compat.configure_logger()
