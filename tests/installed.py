"""The plugins of the environment, for tests that load none of them."""

from importlib.metadata import entry_points

COMMANDS = {"doctor", "init", "records"}
"""Those that offer commands of agl-core itself, and need nothing."""
INSTALLED = ",".join(sorted({point.name for point in entry_points(group="agl_core")} - COMMANDS))
"""The others, as ``AGL_DISABLE_PLUGINS`` takes them."""
