"""A started exchange that has not been waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from torch import Tensor

from .chain import inside_backward
from .checks import memory_of
from .errors import ExchangeError
from .tracing import untraced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .flight import Flight

__all__ = ["Dropped", "Pending"]

T = TypeVar("T")


class Dropped(NamedTuple):
    """A Pending that was thrown away; its messages are still finished.

    Args:
        label: For the error; empty where it was right to throw it away.
        flight: Its messages.
        error: That its end has raised, where nobody could catch it.
    """

    label: str
    flight: Flight | None
    error: ExchangeError | None = None


class Pending(Generic[T]):
    """The result of ``start_exchange`` or ``start_shift``: ``wait()`` gives the tree.

    What is sent must not be written to before ``wait()``: the transport reads it when the peer is
    ready, so a peer could get old values, new ones, or a mixture. This is found at ``wait()``.

    Args:
        label: Operation and caller, for error texts.
        flight: The messages.
        sent: The tensors being sent.
        finish: Waits and builds the tree.
        dropped: Where to leave a note when this object dies without ``wait()``.
        landing: Memory that started exchanges will write to; no other may have it meanwhile.
    """

    def __init__(
        self,
        label: str,
        flight: Flight | None,
        sent: Sequence[Tensor],
        finish: Callable[[], T],
        dropped: list[Dropped],
        landing: set[int],
    ) -> None:
        self._label, self._flight, self._dropped = label, flight, dropped
        self._finish: Callable[[], T] | None = finish
        self._landing = landing
        self._outs = [] if flight is None or flight.outs is None else flight.outs
        self._places = list(map(memory_of, self._outs))
        landing.update(self._places)
        if flight is not None and self._outs:  # `out.data = x` must not free what is written to
            flight.held = [x.detach() for x in self._outs]
        # Inference tensors have no version counter.
        self._versions = [(x, x._version) for x in (*sent, *self._outs) if not x.is_inference()]
        # A checkpoint that computes its block again stops as soon as it has what it needs.
        self._may_drop = inside_backward()
        self._result: list[T] = []

    @untraced
    def wait(self) -> T:
        """Return what arrived; idempotent.

        Raises:
            ExchangeError: A tensor was written to while it was being sent; the exchange failed; or
                this is another thread than the one that exchanges over the group.
        """
        if self._finish is not None and self._flight is not None:
            self._flight.claim()
        finish, self._finish = self._finish, None
        if finish is not None:
            modified = any(tensor._version != version for tensor, version in self._versions)
            modified = modified or self._places != list(map(memory_of, self._outs))
            self._landing.difference_update(self._places)
            result = finish()
            if modified:
                raise ExchangeError(
                    f"{self._label}: a tensor that was sent, or given as out=, was modified in"
                    " place between start and wait(), so that old values, new ones or a mixture may"
                    " have arrived; modify it after wait(), or hand over a clone"
                )
            self._versions = []
            self._result.append(result)
        if not self._result:
            raise ExchangeError(f"{self._label}: wait() failed before; the exchange has no result")
        return self._result[0]

    @untraced
    def __del__(self) -> None:
        if getattr(self, "_finish", None) is not None:
            self._landing.difference_update(self._places)
            label = "" if self._may_drop else self._label
            self._dropped.append(Dropped(label, self._flight))

    def __repr__(self) -> str:
        state = "waited for" if self._finish is None else "under way"
        return f"<Pending {self._label}: {state}>"
