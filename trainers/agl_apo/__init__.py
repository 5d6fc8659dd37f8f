"""The optimiser ``apo``: textual gradients with beam search (Pryzant et al. 2023, arXiv:2305.03495).

Reading order: `_apo` (the method and its rule of choice), `_search` (rounds and beam), `_writer`
(requests to critic and editor), `_templates`, `_options`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_apo._apo import Apo as Apo
    from agl_apo._options import ApoOptions as ApoOptions
else:
    __getattr__, __dir__, __all__ = late(__name__)
