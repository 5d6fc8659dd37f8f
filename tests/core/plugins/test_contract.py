from agl_testing.plugin_contract import PluginContract


class TestBuiltin(PluginContract):
    plugin = "agl_core._builtin"
    frameworks = ("aiohttp", "uvicorn", "httpx", "sqlite3")
