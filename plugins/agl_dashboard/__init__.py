"""A dashboard in the browser: ``agl dashboard``.

Each page is a panel, which a plugin registers by the hook ``agl_register_panels``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_dashboard._panel import Changing as Changing
    from agl_dashboard._panel import Page as Page
    from agl_dashboard._panel import Panel as Panel
    from agl_dashboard._panel import PlainAnswer as PlainAnswer
    from agl_dashboard._panel import View as View
else:
    __getattr__, __dir__, __all__ = late(__name__)
