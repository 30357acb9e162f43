"""The names of jobs where every user may read them: in queues, refusals, reasons and forecasts.

Every user of a server sees which user, pool and job name holds which resources. A server with `private_jobs` hides the
names too: it then calls a job by its owner and a digest, which is the same for all jobs of that name and opens nothing.
"""

from __future__ import annotations

import hashlib

from oarlock.spec import jobs

DIGITS = 6


class Names:
    """`private` says whether names are hidden; `key` makes the digests, so that names cannot be tried."""

    def __init__(self, private: bool = False, key: bytes = b"") -> None:
        self.private = private
        self._key = key

    def of(self, job: jobs.Job) -> str:
        """Return the name for all to read."""
        if not self.private:
            return job.name
        digest = hashlib.blake2b(f"{job.owner}\0{job.name}".encode(), key=self._key[:64], digest_size=8)
        return f"job {digest.hexdigest()[:DIGITS]} of {job.owner}"


PUBLIC = Names()
