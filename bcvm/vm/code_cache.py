"""Which native code stays: least recently used goes first, and what was idle for the time to live may go once the cache is half full.

Use is read from the counters that stubs keep, so it costs calls nothing; the cache looks when code is added, on the compile thread.
Eviction never changes a result: the next such call is interpreted and compiled again.
"""
from __future__ import annotations

import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bcvm.vm import listener

if TYPE_CHECKING:
    from bcvm.vm.site import Site, Specialisation


@dataclass(eq=False)
class _Held:
    site: "weakref.ref[Site]"
    made: "Specialisation"
    calls: int = 0
    used: float = 0.0


class CodeCache:
    def __init__(self) -> None:
        self._held: list[_Held] = []
        self._lock = threading.Lock()
        self.evicted = 0

    def add(self, site: "Site", made: "Specialisation") -> None:
        """Code was published; what is over the limits of its function's settings goes."""
        settings = site.owner.settings()
        with self._lock:
            self._held.append(_Held(weakref.ref(site), made, used=time.monotonic()))
        self.sweep(settings.cache_size, settings.cache_ttl_s)

    def sweep(self, size: int, ttl: float) -> None:
        """Evict down to `size`, and what was idle for `ttl` seconds while more than half of that is held."""
        now = time.monotonic()
        with self._lock:
            self._held = [h for h in self._held if (site := h.site()) is not None and h.made in site.specialisations]
            for h in self._held:
                calls = h.made.code.calls()
                if calls != h.calls:
                    h.calls, h.used = calls, now
            self._held.sort(key=lambda h: h.used)
            over = max(len(self._held) - size, 0)
            idle = sum(now - h.used > ttl for h in self._held[:max(len(self._held) - size // 2, 0)])
            gone, self._held = self._held[:max(over, idle)], self._held[max(over, idle):]
        for h in gone:
            self._evict(h)

    def clear(self) -> None:
        """Evict everything."""
        with self._lock:
            gone, self._held = self._held, []
        for h in gone:
            self._evict(h)

    def _evict(self, h: _Held) -> None:
        site = h.site()
        if site is not None and site.evict(h.made):
            self.evicted += 1
            listener.send("evict", function=site.owner, key=h.made.key)

    def info(self) -> dict[str, Any]:
        with self._lock:
            live = [h for h in self._held if (site := h.site()) is not None and h.made in site.specialisations]
        return {"specialisations": len(live), "bytes": sum(h.made.code.code.size for h in live), "calls": sum(h.made.code.calls() for h in live), "evicted": self.evicted}


cache = CodeCache()
