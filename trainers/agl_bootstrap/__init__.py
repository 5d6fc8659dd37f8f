"""The optimiser ``bootstrap``: demonstrations out of an agent's own best-rewarded calls.

It follows BootstrapFewShotWithRandomSearch of DSPy (Khattab et al. 2023, arXiv:2310.03714). It asks
no editor model. Reading order: `_bootstrap` (the search), `_demos` (from calls to text), `_options`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_bootstrap._bootstrap import Bootstrap as Bootstrap
    from agl_bootstrap._demos import HEADER as HEADER
    from agl_bootstrap._options import BootstrapOptions as BootstrapOptions
else:
    __getattr__, __dir__, __all__ = late(__name__)
