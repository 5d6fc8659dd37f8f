"""Its tests need it installed, as ``tox -e plugin-package`` does; elsewhere there are none."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("parley_agl") else ["*"]
