from agl_testing.plugin_contract import PluginContract


class TestPlugin(PluginContract):
    plugin = "agl_counting.plugin"
