"""The plugins of the environment, for tests that load none of them."""

from importlib.metadata import entry_points

OWN = {
    "doctor",
    "http_clients",
    "init",
    "otlp",
    "progress",
    "prompts",
    "records",
    "remote",
    "responses",
    "results",
    "rewards",
    "tasks",
    "tracking",
    "tuning",
}
"""Those that bring what agl-core itself offers, and need nothing."""
INSTALLED = ",".join(sorted({point.name for point in entry_points(group="agl_core")} - OWN))
"""The others, as ``AGL_DISABLE_PLUGINS`` takes them."""
