"""Contract suites for plugins, and tools to test agents: fakes, clocks, the canonical scenario."""

from __future__ import annotations

import pkgutil
import sys

if pytest := sys.modules.get("pytest"):
    # A failed assertion then shows its values.
    pytest.register_assert_rewrite(
        *(f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__))
    )
