"""Which ports of the held block are free at this moment: asked once, at registration."""

from __future__ import annotations

import socket


def free(ports: list[int]) -> list[int]:
    """Those on which a server could listen. What an earlier attempt left in TIME_WAIT is in nobody's way."""
    return [port for port in ports if _listens(port)]


def _listens(port: int) -> bool:
    probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
        probe.listen(1)
    except (OSError, OverflowError):
        return False
    finally:
        probe.close()
    return True
