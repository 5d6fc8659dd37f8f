from agl_testing.plugin_contract import PluginContract


class TestPlugin(PluginContract):
    plugin = "agl_dashboard.plugin"
    frameworks = ("starlette", "jinja2", "plotly", "markupsafe")
