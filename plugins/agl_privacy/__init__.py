"""Personal data: found, masked, and kept out of training.

`_find`, `_postal` and `_presidio` recognise it, and `_masks` says what is left of it; `_masker`
applies both to texts and JSON values, `_logs` to log records. `_options` has the section ``[privacy]``, which `_observer` follows
for logs, `_filter` for training and events, and `_layer` for stores; `_exports` has ``--mask``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_privacy._find import PersonalData as PersonalData
    from agl_privacy._logs import mask_logs as mask_logs
    from agl_privacy._masker import Masker as Masker
    from agl_privacy._options import MaskOptions as MaskOptions
    from agl_privacy._options import PrivacyOptions as PrivacyOptions
else:
    __getattr__, __dir__, __all__ = late(__name__)
