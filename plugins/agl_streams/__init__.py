"""Token streams of a run: the newest steps' batches as files, which are read by call.

`plugin` observes a run and writes them below ``tokens`` of its directory. The rest is a library for
what shows tokens: `StreamFolder` reads the files, `TokenBytes` are the bytes of token ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.faces import late

if TYPE_CHECKING:
    from agl_streams._file import CallTokens as CallTokens
    from agl_streams._file import StreamHeader as StreamHeader
    from agl_streams._file import TokenFile as TokenFile
    from agl_streams._folder import FOLDER as FOLDER
    from agl_streams._folder import StreamFolder as StreamFolder
    from agl_streams._tokenizer import TokenBytes as TokenBytes
    from agl_streams._tokenizer import read_token_bytes as read_token_bytes
else:
    __getattr__, __dir__, __all__ = late(__name__)
