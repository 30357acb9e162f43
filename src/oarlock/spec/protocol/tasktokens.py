"""The token of a task: derived for its key, so that it is stored nowhere, and dies with the incarnation that it names.

The guardian derives it for the assignment, the API derives it again and compares. The secret is the server's own:
32 random bytes that outlive it, because agents outlive it too.
"""

from __future__ import annotations

import hashlib
import hmac

from oarlock.spec import attempts

SECRET_BYTES = 32
_PURPOSE = b"oarlock task token 1\0"
_SERVERS = b"oarlock parameter servers 1\0"
_TENSORBOARD = b"oarlock tensorboard 1\0"
_SERVER = b"oarlock server 1\0"
TENSORBOARD_PREFIX = "oat_"


def derive(secret: bytes, key: attempts.TaskKey) -> str:
    """Return HMAC-SHA256 of the task key, 64 hexadecimal digits. Raise ValueError for a secret too short to be one."""
    return _derived(secret, _PURPOSE + str(key).encode())


def of_attempt(secret: bytes, job: str, attempt: int) -> str:
    """Return the token by which the parameter servers of an attempt know its workers, 64 hexadecimal digits."""
    return _derived(secret, _SERVERS + f"{job}/{attempt}".encode())


def of_tensorboard(secret: bytes, job: str, attempt: int) -> str:
    """Return the token by which the TensorBoard beside an attempt reads the job's metrics, and nothing else."""
    return TENSORBOARD_PREFIX + _derived(secret, _TENSORBOARD + f"{job}/{attempt}".encode())


def of_server(secret: bytes) -> str:
    """Return the public name of the server, 12 hexadecimal digits: the same for all servers that share the secret."""
    return _derived(secret, _SERVER)[:12]


def holds(secret: bytes, key: attempts.TaskKey, token: str) -> bool:
    """Return whether this is the key's token, in constant time."""
    return hmac.compare_digest(derive(secret, key).encode(), token.encode())


def _derived(secret: bytes, purpose: bytes) -> str:
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"the task secret has {len(secret)} bytes, not {SECRET_BYTES}")
    return hmac.new(secret, purpose, hashlib.sha256).hexdigest()
