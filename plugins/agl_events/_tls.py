"""TLS of event buses: why a server is not trusted, and which file of authorities an address names."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

from agl_core.errors import ConfigError
from agl_events._bus import hidden


def check_authorities(url: str, option: str) -> None:
    """Check the file that an address names as `option`, if any.

    Raises:
        ConfigError: it cannot be read, or holds no certificates.
    """
    for file in parse_qs(urlsplit(url).query).get(option, []):
        try:
            ssl.create_default_context(cafile=file)
        except OSError as error:
            raise ConfigError(
                f"events.url = {hidden(url)!r}: {option} = {file!r} holds no certificates: "
                f"{error.strerror or error}: give a PEM file with the certificate of the authority "
                f"that signed the server's"
            ) from error


def distrust(error: BaseException, place: str, option: str) -> ConfigError | None:
    """Return the error for a server whose certificate is not trusted; None for any other error.

    Args:
        error: Why the server could not be reached.
        place: The server, as the message names it.
        option: What names a file of authorities in an address.
    """
    for each in _chain(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return ConfigError(
                f"{place} has a certificate that is not trusted ({each.verify_message or each}): "
                f"give the server one that is valid now and for this host, or name the authority "
                f"that signed it, by {option}=FILE in events.url or by SSL_CERT_FILE"
            )
    return None


def tls_hint(url: str, error: BaseException, *, plain: str) -> str:
    """Return what to try where client and server do not agree on TLS; empty for other errors.

    Args:
        url: The address.
        error: Why it could not be opened.
        plain: The scheme without TLS; with TLS, it has an ``s`` more.
    """
    if urlsplit(url).scheme == plain:
        fits = any(isinstance(each, ConnectionResetError) for each in _chain(error))
        other, what = f"{plain}s", "TLS only"
    else:
        fits = any(isinstance(each, ssl.SSLError | TimeoutError) for each in _chain(error))
        other, what = plain, "no TLS"
    return f"; if the server speaks {what}, write {other}://" if fits else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that it came from, each once: libraries raise one again and again."""
    seen, left = set[int](), [error]
    while left:
        each = left.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [from_ for from_ in (each.__cause__, each.__context__) if from_ is not None]
