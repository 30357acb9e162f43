"""The contract of every store (`oarlock.store.stores`), of one class for each group of nouns.

A test of an implementation inherits `StoreContract` and gives it an empty `store`.
"""

from __future__ import annotations

from tests.store.contract import (
    access,
    checkpoints,
    cluster,
    eventlog,
    holdings,
    jobs,
    leadership,
    lists,
    names,
    removal,
    samples,
    transactions,
    usage,
)


class StoreContract(
    jobs.Jobs,
    names.Names,
    lists.Lists,
    transactions.Transactions,
    leadership.Leadership,
    holdings.Holdings,
    eventlog.EventLog,
    removal.Removal,
    checkpoints.Checkpoints,
    cluster.Cluster,
    access.Access,
    usage.Usage,
    samples.Samples,
):
    """The whole contract."""
