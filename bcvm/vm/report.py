"""Events of compilations, with what the tools print about them."""
from __future__ import annotations

from typing import TYPE_CHECKING

from bcvm.vm import listener

if TYPE_CHECKING:
    from bcvm.vm.function import Function
    from bcvm.vm.site import Site, Specialisation


def compiled(function: "Function", site: "Site", made: "Specialisation") -> None:
    """A specialisation is ready."""
    if listener.listening():
        for region in made.code.compiled.regions:
            listener.send("fuse", function=function, region=region)
        listener.send("compiled", function=function, site=site, specialisation=made)


def failed(function: "Function", error: BaseException) -> None:
    """A compilation failed; calls stay interpreted."""
    listener.send("failed", function=function, error=error)
