from agl_testing.plugin_contract import PluginContract


class TestPlugin(PluginContract):
    plugin = "agl_privacy.plugin"
    frameworks = ("phonenumbers", "presidio_analyzer", "pydantic", "spacy")
