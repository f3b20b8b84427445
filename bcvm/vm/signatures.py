"""Signature ids: the interned number of a call's argument types, 16 bit. The 65,536th and all later ones share the generic id."""
from __future__ import annotations

import threading
from typing import Any

GENERIC = 0xFFFF
_ids: dict[Any, int] = {}
_lock = threading.Lock()


def signature_id(signature: tuple[Any, ...]) -> int:
    """The id of a signature, given on first sight, from 1 on; 0 is "not resolved"."""
    with _lock:
        found = _ids.get(signature)
        if found is None:
            if len(_ids) + 1 >= GENERIC:
                return GENERIC
            found = _ids[signature] = len(_ids) + 1
        return found
