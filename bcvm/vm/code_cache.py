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
    """Weak: what is here must not keep a function alive, which its code leads to."""

    site: "weakref.ref[Site]"
    made: "weakref.ref[Specialisation]"
    calls: int = 0
    used: float = 0.0

    def live(self) -> "tuple[Site, Specialisation] | None":
        site, made = self.site(), self.made()
        return (site, made) if site is not None and made is not None and made in site.specialisations else None


class CodeCache:
    def __init__(self) -> None:
        self._held: list[_Held] = []
        self._lock = threading.Lock()
        self.evicted = 0

    def add(self, site: "Site", made: "Specialisation") -> None:
        """Code was published; what is over the limits of its function's settings goes."""
        settings = site.owner.settings()
        with self._lock:
            self._held.append(_Held(weakref.ref(site), weakref.ref(made), used=time.monotonic()))
        self.sweep(settings.cache_size, settings.cache_ttl_s)

    def sweep(self, size: int, ttl: float) -> None:
        """Evict down to `size`, and what was idle for `ttl` seconds while more than half of that is held."""
        now = time.monotonic()
        with self._lock:
            kept = []
            for h in self._held:
                live = h.live()
                if live is not None:
                    kept.append(h)
                    calls = live[1].code.calls()
                    if calls != h.calls:
                        h.calls, h.used = calls, now
            self._held = sorted(kept, key=lambda h: h.used)
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
        live = h.live()
        if live is not None and live[0].evict(live[1]):
            self.evicted += 1
            listener.send("evict", function=live[0].owner, key=live[1].key)

    def info(self) -> dict[str, Any]:
        with self._lock:
            live = [pair[1] for h in self._held if (pair := h.live()) is not None]
        return {"specialisations": len(live), "bytes": sum(m.code.code.size for m in live), "calls": sum(m.code.calls() for m in live), "evicted": self.evicted}


cache = CodeCache()
