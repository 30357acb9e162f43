"""Objects made from what lies on disk, one for each name: kept while somebody uses them, and for a while after.

A server that runs for months sees many more jobs than it has to keep in memory. Two objects for one name would each
believe to be the only one that appends: so one that is still in use is always the one that is given out, however long
ago it was asked for. Its user holds a reference for as long as the use lasts.
"""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST = 1000


class Recent(Generic[T]):
    """`make` is called with the name, by one thread at a time. The `most` that were asked for last are kept."""

    def __init__(self, make: Callable[[str], T], most: int = MOST) -> None:
        self._make = make
        self._most = most
        self._lock = threading.Lock()
        self._used: weakref.WeakValueDictionary[str, T] = weakref.WeakValueDictionary()
        self._kept: collections.OrderedDict[str, T] = collections.OrderedDict()

    def get(self, name: str) -> T:
        with self._lock:
            found = self._used.get(name)
            if found is None:
                found = self._used[name] = self._make(name)
            self._kept[name] = found
            self._kept.move_to_end(name)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return found

    def drop(self, name: str) -> None:
        """The next one asked for is made anew."""
        with self._lock:
            self._kept.pop(name, None)
            self._used.pop(name, None)
