"""A started exchange that has not been waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from torch import Tensor

from .chain import inside_backward
from .errors import ExchangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .flight import Flight

__all__ = ["Dropped", "Pending"]

T = TypeVar("T")


class Dropped(NamedTuple):
    """A Pending that was thrown away; its messages are still finished."""

    label: str
    flight: Flight | None


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
    """

    def __init__(
        self,
        label: str,
        flight: Flight | None,
        sent: Sequence[Tensor],
        finish: Callable[[], T],
        dropped: list[Dropped],
    ) -> None:
        self._label, self._flight, self._dropped = label, flight, dropped
        self._finish: Callable[[], T] | None = finish
        # Inference tensors have no version counter.
        self._sent = [(x, x._version) for x in sent if not x.is_inference()]
        # A checkpoint that computes its block again stops as soon as it has what it needs.
        self._may_drop = inside_backward()
        self._result: list[T] = []

    def wait(self) -> T:
        """Return what arrived; idempotent.

        Raises:
            ExchangeError: A tensor was written to while it was being sent; or the exchange failed.
        """
        finish, self._finish = self._finish, None
        if finish is not None:
            result = finish()
            if any(tensor._version != version for tensor, version in self._sent):
                raise ExchangeError(
                    f"{self._label}: a tensor was modified in place between start and wait(), so"
                    " its neighbours may have got old values, new ones or a mixture; modify it"
                    " after wait(), or send a clone"
                )
            self._sent = []
            self._result.append(result)
        if not self._result:
            raise ExchangeError(f"{self._label}: wait() failed before; the exchange has no result")
        return self._result[0]

    def __del__(self) -> None:
        if getattr(self, "_finish", None) is not None and not self._may_drop:
            self._dropped.append(Dropped(self._label, self._flight))

    def __repr__(self) -> str:
        state = "waited for" if self._finish is None else "under way"
        return f"<Pending {self._label}: {state}>"
