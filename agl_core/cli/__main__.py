"""``python -m agl_core.cli``."""

from agl_core.cli import main

main()
