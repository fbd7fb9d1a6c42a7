"""From compiled code to the Exchange that it was made for, as long as that lives."""

from __future__ import annotations

import contextlib
import itertools
import weakref
import zlib
from typing import TYPE_CHECKING, Protocol

from ..errors import CollectivesError, ContextError

if TYPE_CHECKING:
    from ..binding import Binding
    from .script import Script

__all__ = ["Named", "enter", "find", "identity_of", "named"]


class Named(Protocol):
    """An Exchange."""

    _name: str
    _handle: str
    _binding: Binding | None

    def _bound(self) -> Binding: ...


_live: weakref.WeakValueDictionary[str, Named] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def enter(exchange: Named, name: str) -> str:
    """Return a handle of an Exchange, by which compiled code finds it."""
    handle = f"{name}#{next(_numbers)}"
    _live[handle] = exchange
    return handle


def named(handle: str) -> Named:
    """Return the Exchange of a handle, while its code is traced."""
    return _live[handle]


def identity_of(binding: Binding) -> str:
    """Return what two Exchanges have in common that may stand in for each other."""
    return f"{zlib.crc32(repr((binding.name, binding.digest, binding.verify)).encode()):08x}"


def find(script: Script) -> Binding:
    """Return the binding that compiled code runs on.

    Code from another process (``torch.export``) finds the Exchange of the same name and topology.

    Raises:
        ContextError: There is none.
    """
    exchange = _live.get(script.handle)
    if exchange is not None:
        binding = exchange._bound()
        if _fits(binding, script):
            return binding
    for candidate in list(_live.values()):
        if candidate._name == script.handle.rpartition("#")[0]:
            with contextlib.suppress(CollectivesError):  # one that is closed, or comes too early
                binding = candidate._bound()
                if _fits(binding, script):
                    return binding
    raise ContextError(
        f"{script.op}: this compiled code belongs to rank {script.rank} of {script.size} of an"
        " Exchange that is not here: it is gone, or this process has another rank. Compile it again"
        " where it runs (torch.compiler.reset()); what torch.export wrote needs an Exchange of the"
        " same name and topology, and a file for each rank"
    )


def _fits(binding: Binding, script: Script) -> bool:
    engine = binding.engine
    return (engine.rank, engine.size) == (script.rank, script.size) and (
        identity_of(binding) == script.identity
    )
