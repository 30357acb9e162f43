"""A cache of objects read from the disk, one for each name.

A server that runs for months sees many more jobs than it can keep in memory, so the cache is bounded. But two objects
for one name would both append to one file. The cache therefore always returns the object that is still in use, however
old it is. Its user holds a reference as long as the use lasts.
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
    """A cache of the `most` objects used last. One thread at a time calls `make` with a name."""

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
        """Remove the object, so that the next `get` makes a new one."""
        with self._lock:
            self._kept.pop(name, None)
            self._used.pop(name, None)
