"""What every test shares: property tests without deadlines, and the same draws on every CI run."""

import os
from pathlib import Path

from hypothesis import settings

settings.register_profile("agl", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("agl")

# Every client of httpx would read the authorities of the whole machine, tens of milliseconds long.
# Loopback needs none: this one signed nothing.
if "AGL_TEST_SMOLLM2" not in os.environ:
    os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))
