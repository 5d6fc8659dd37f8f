from agl_testing.plugin_contract import PluginContract


class TestThePlugin(PluginContract):
    plugin = "agl_tuning.plugin"
