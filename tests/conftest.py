"""What every test shares: property tests without deadlines, and the same draws on every CI run."""

import os

from hypothesis import settings

settings.register_profile("agl", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("agl")
