"""The cookie that holds a browser's session. Its name is the server's: cookies of one host are shared by all ports.

Servers that share a database and its sessions have one name, so that a login at one of them holds at all of them.
"""

from __future__ import annotations

import re
from http import cookies

from oarlock.spec.access import users

_SECRET = re.compile(r"oas_[A-Za-z0-9_-]{43}")


class SessionCookie:
    """The session cookie of one server. `server` tells two servers of one machine apart; `secure` is for TLS."""

    def __init__(self, server: str, *, secure: bool) -> None:
        self.name = f"__Host-oarlock-{server}" if secure else f"oarlock-{server}"
        self._attributes = "; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")

    def read(self, header: str) -> str | None:
        """Return the session's secret out of the Cookie header; None for a missing or malformed one."""
        for part in header.split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.name and _SECRET.fullmatch(value):
                return value
        return None

    def set(self, secret: str) -> tuple[str, str]:
        """Return the header that gives the session to the browser. The server ends the session, not the browser."""
        morsel = cookies.Morsel[str]()
        morsel.set(self.name, secret, secret)
        return "set-cookie", f"{morsel.OutputString()}; Max-Age={int(users.SESSION_S)}{self._attributes}"

    def clear(self) -> tuple[str, str]:
        return "set-cookie", f"{self.name}=; Max-Age=0{self._attributes}"
