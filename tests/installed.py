"""The plugins of the environment, for tests that load none of them."""

from importlib.metadata import entry_points

INSTALLED = ",".join(sorted({point.name for point in entry_points(group="agl_core")}))
"""As ``AGL_DISABLE_PLUGINS`` takes them."""
