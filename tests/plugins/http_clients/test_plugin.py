from agl_testing.plugin_contract import PluginContract


class TestPlugin(PluginContract):
    plugin = "agl_http_clients.plugin"
    frameworks = ("aiohttp", "urllib3", "websockets")
