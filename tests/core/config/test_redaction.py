"""What trackers see of a configuration holds no secrets."""

from agl_core.config.loader import resolve, without_secrets


def test_secrets_are_blank_and_all_else_stays():
    config = resolve(
        {
            "agents": ["writer"],
            "engine": {
                "name": "http",
                "api_key_env": "EXAMPLE_API_KEY",
                "api_key": "sk-123",
                "nested": [{"password": "pw", "url": "https://me:pw@example.com/v1"}],
            },
            "store": {"name": "http", "url": "http://user:pw@127.0.0.1:1"},
            "rollout": {"max_tokens": 64},
        }
    )
    shown = without_secrets(config)
    assert shown["engine"] == {
        "name": "http",
        "api_key_env": "EXAMPLE_API_KEY",
        "api_key": "***",
        "nested": [{"password": "***", "url": "https://***@example.com/v1"}],
    }
    assert shown["store"]["url"] == "http://***@127.0.0.1:1"
    assert shown["rollout"]["max_tokens"] == 64
    assert shown["agents"] == ["writer"]
