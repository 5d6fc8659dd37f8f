"""An MCP server over streamable HTTP with one tool: ``search(query)`` returns the best chunks.

``python retriever.py --index index.sqlite`` serves until Ctrl+C and prints its address.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from pathlib import Path

import uvicorn
from index import IndexFileError, check, search
from mcp import MCPError
from mcp.server.mcpserver import MCPServer

HOST, PATH = "127.0.0.1", "/mcp"
NOTHING = "No results."
SERVING = "retriever at "
"""First words of the line that states the address."""
_INTERNAL_ERROR = -32603


def server(index: Path) -> MCPServer:
    """Return the server of an index."""
    mcp = MCPServer("retriever", log_level="WARNING")

    @mcp.tool(name="search", structured_output=False)
    def found(query: str) -> str:
        """Search the encyclopedia; return up to three short texts."""
        try:
            chunks = search(index, query)
        except IndexFileError as error:
            # An error of the protocol: the model can do nothing about it, so it does not read it.
            raise MCPError(_INTERNAL_ERROR, str(error)) from error
        return "\n".join(chunks) or NOTHING

    return mcp


def bound(port: int) -> socket.socket:
    """Return a socket at a port of this machine; 0 is a free one.

    Raises:
        OSError: the port is taken, or may not be used.
    """
    listening = socket.socket()
    if os.name != "nt":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen(128)
    except (OSError, OverflowError):
        listening.close()
        raise
    return listening


def serve(index: Path, port: int, *, until_input_ends: bool) -> None:
    """Serve an index until Ctrl+C, or until the standard input is closed."""
    with bound(port) as listening:
        # Without sessions, a client may continue with another process.
        app = server(index).streamable_http_app(
            streamable_http_path=PATH, json_response=True, stateless_http=True, host=HOST
        )
        web = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        if until_input_ends:
            threading.Thread(target=_end_with_input, args=[web], daemon=True).start()
        address = f"http://{HOST}:{listening.getsockname()[1]}{PATH}"
        sys.stdout.write(f"{SERVING}{address}\n")
        sys.stdout.flush()
        web.run(sockets=[listening])


def _end_with_input(web: uvicorn.Server) -> None:
    sys.stdin.buffer.read()
    web.should_exit = True


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python retriever.py", description=__doc__)
    parser.add_argument("--index", type=Path, required=True, metavar="FILE")
    parser.add_argument("--port", type=int, default=8016, help="0 is a free port")
    parser.add_argument(
        "--until-input-ends", action="store_true", help="end when the standard input is closed"
    )
    options = parser.parse_args()
    try:
        check(options.index)
        serve(options.index, options.port, until_input_ends=options.until_input_ends)
    except IndexFileError as error:
        sys.exit(f"error: {error}")
    except (OSError, OverflowError) as error:
        sys.exit(
            f"error: cannot serve at {HOST}:{options.port} ({error}). Give another --port; "
            "0 is a free one"
        )
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
