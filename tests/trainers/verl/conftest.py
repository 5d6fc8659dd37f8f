"""Without verl there is nothing here to collect; with it, it is imported for the CPU."""

import os
from importlib.util import find_spec

if find_spec("verl"):
    from agl_verl.cpu import ENVIRONMENT

    os.environ.update(ENVIRONMENT)

collect_ignore_glob = [] if find_spec("verl") else ["test_*.py"]
