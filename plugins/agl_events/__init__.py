"""Events of runs on an event bus.

`_facts` has the data of every event and `_event` their form. `_observer` makes an event of all that
a run reports to its plugins, `_outbox` keeps them on disk, `_sender` delivers them to a `Bus`. `_subscribe`
is for those who read them. Plugins that connect to a bus register it as ``events.<scheme>``; `_tls` is for
those whose bus speaks TLS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_events._bus import Bus as Bus
    from agl_events._bus import BusError as BusError
    from agl_events._bus import Delivery as Delivery
    from agl_events._bus import Message as Message
    from agl_events._bus import hidden as hidden
    from agl_events._bus import wanted as wanted
    from agl_events._event import CHANNELS as CHANNELS
    from agl_events._event import BusEvent as BusEvent
    from agl_events._event import decode as decode
    from agl_events._facts import schema_of as schema_of
    from agl_events._options import BusOptions as BusOptions
    from agl_events._subscribe import Subscription as Subscription
    from agl_events._subscribe import handle as handle
    from agl_events._subscribe import subscribe as subscribe
    from agl_events._tls import check_authorities as check_authorities
    from agl_events._tls import distrust as distrust
    from agl_events._tls import tls_hint as tls_hint
else:
    __getattr__, __dir__, __all__ = late(__name__)
