"""Who may ask: a token for every address but this machine's own, and no page of another site."""

from __future__ import annotations

import hmac
import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from fidec.errors import ConfigError
from fidec.serve.errors import Refused

VARIABLE = "FIDEC_TOKEN"
SHORTEST = 16  # characters of a token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host == "localhost" or _is_address(host, loopback=True)


def read_token(host: str, file: Path | None) -> str | None:
    """The token from the file or the environment. ConfigError if an address needs one and there is none."""
    if file is not None:
        try:
            token, source = file.read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the token file {file} cannot be read: {error}") from error
    else:
        token, source = os.environ.get(VARIABLE, "").strip(), VARIABLE
    if token or file is not None:
        if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(
                f"the token of {source} has to be one word of at least {SHORTEST} ASCII characters, for example "
                "that of `openssl rand -hex 24`"
            )
        return token
    if not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached from other machines, so clients have to show a token: give --token-file "
            f"FILE or set {VARIABLE}. Without one the server binds to 127.0.0.1 only"
        )
    return None


class Gate:
    """Checks the headers of a request; raises `Refused`."""

    def __init__(self, host: str, token: str | None):
        self._host, self._token = host, None if token is None else token.encode()

    def check_site(self, headers: Mapping[str, str]) -> None:
        """Refuse pages of other sites.

        A browser sends a page's `Origin`, which has to be this server. A site may let its own name resolve to this
        machine (DNS rebinding); so without a token the `Host` has to be an address or `localhost`, never such a name.
        """
        host = headers.get("Host", "")
        name = urlsplit(f"//{host}").hostname if _plain(host) else None
        if self._token is None and not (name in ("localhost", self._host) or _is_address(name or "")):
            raise Refused("origin", "the header Host is neither an address nor localhost: use the server's address")
        origin = headers.get("Origin")
        if origin is not None and (not _plain(origin) or urlsplit(origin).netloc.lower() != host.lower()):
            raise Refused("origin", "the header Origin names another site: pages of other sites get no actions")

    def check_token(self, headers: Mapping[str, str]) -> None:
        """`Authorization: Bearer TOKEN`, or openpi's `Authorization: Api-Key TOKEN`."""
        if self._token is None:
            return
        kind, _, given = headers.get("Authorization", "").partition(" ")
        shown = given.strip().encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(shown, self._token) or kind.lower() not in ("bearer", "api-key"):
            raise Refused("token", "this server needs a token: send the header Authorization: Bearer TOKEN")


def _plain(text: str) -> bool:
    """Whether `urlsplit` understands it."""
    try:
        return bool(urlsplit(text if "//" in text else f"//{text}").hostname)
    except ValueError:
        return False


def _is_address(name: str, loopback: bool = False) -> bool:
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not loopback
