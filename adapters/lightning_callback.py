"""A callback that looks after an Exchange, made of the Callback class of your own Lightning."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from collectives.discovery import describe
from collectives.errors import ArgumentError, CollectivesError
from collectives.guard import describe as describe_error
from collectives.ranges import WATCHERS, Watcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ExchangeLike", "exchange_callback"]


class ExchangeLike(Protocol):
    """What the callback asks of an Exchange."""

    def stats(self) -> Mapping[str, float]:
        """Return counters by name."""
        ...

    def check_backward(self) -> None:
        """Raise when only a part of the step's exchanges ran backward."""
        ...

    def mark_step(self, *numbers: int) -> None:
        """Say which step begins."""
        ...

    def abort(self, reason: str) -> None:
        """Fail on all ranks."""
        ...

    def close(self) -> None:
        """Let go of everything, for good."""
        ...


class _LoggerLike(Protocol):
    def log_metrics(self, metrics: dict[str, float], step: int) -> None: ...


class _SteppingTrainer(Protocol):
    @property
    def current_epoch(self) -> int: ...

    @property
    def global_step(self) -> int: ...


class _LoggingTrainer(_SteppingTrainer, Protocol):
    @property
    def log_every_n_steps(self) -> int: ...

    @property
    def loggers(self) -> Sequence[_LoggerLike]: ...


class _ProfilingTrainer(Protocol):
    @property
    def profiler(self) -> object: ...


# One that does nothing; one that torch's own ranges reach anyway; and those in which an action
# within an action would end the outer one.
_NOT_TOLD = {"PassThroughProfiler", "PyTorchProfiler", "AdvancedProfiler", "XLAProfiler"}

CloseOn = Literal["never", "teardown"]
_Kinds = WeakKeyDictionary["ExchangeLike", dict[type, "type[_ExchangeHooks]"]]
_kinds: _Kinds = WeakKeyDictionary()
_Callback = TypeVar("_Callback")


def exchange_callback(
    callback_class: type[_Callback],
    exchange: ExchangeLike,
    *,
    log: bool = True,
    close_on: CloseOn = "never",
) -> _Callback:
    """Make a callback of your own Lightning that looks after ``exchange``.

    Convenience only: an Exchange with a :class:`LightningAdapter` works without it. After each
    backward it checks that the exchanges ran backward too; an exception on one rank fails the
    exchanges of all at once; each training batch it marks the step, for adapters that do not;
    it hands the counters of rank 0 to the Trainer's loggers, as ``exchange/bytes``,
    ``exchange/wait_ms``, ``exchange/shift/bytes``, ..., every ``log_every_n_steps`` optimizer
    steps; and it gives the SimpleProfiler a row for each kind of exchange (the PyTorchProfiler
    needs nobody for that).

    Args:
        callback_class: ``Callback`` of ``lightning.pytorch`` or ``pytorch_lightning``.
        exchange: To look after.
        log: Log ``exchange.stats()``.
        close_on: "teardown" closes the exchange when a stage ends, for good; "never" leaves it
            usable for the next stage, as ``fit`` and then ``test`` on one module need.

    Returns:
        An instance of a subclass of ``callback_class``, for ``Trainer(callbacks=[...])`` or
        ``configure_callbacks``. It can be pickled if ``exchange`` can.

    Raises:
        ArgumentError: ``callback_class`` is no Callback class.
    """
    if not _is_callback_class(callback_class):
        raise ArgumentError(
            "exchange_callback: expected the Callback class of your Lightning, got"
            f" {describe(callback_class)}; pass L.Callback"
        )
    kind = _class_for(callback_class, exchange)
    return cast("_Callback", kind(callback_class, exchange, log=log, close_on=close_on))


class _ExchangeHooks:
    """The hooks, which :func:`exchange_callback` mixes into a Callback class."""

    def __init__(
        self, callback_class: type, exchange: ExchangeLike, *, log: bool, close_on: CloseOn
    ) -> None:
        super().__init__()
        self._exchange = exchange
        self._log = log
        self._close_on = close_on
        self._begin = 0  # optimizer steps before this batch
        self._watcher: Watcher | None = None
        self._recipe = partial(exchange_callback, callback_class, log=log, close_on=close_on)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by recipe, as ddp_spawn needs: the class was made on the fly."""
        return self._recipe, (self._exchange,)

    def setup(self, trainer: _ProfilingTrainer, *_: object, **__: object) -> None:
        """Let the Trainer's profiler see exchanges."""
        self._unwatch()
        profiler = trainer.profiler
        if _NOT_TOLD.isdisjoint(kind.__name__ for kind in type(profiler).__mro__):
            self._watcher = cast("Watcher", profiler)
            WATCHERS.append(self._watcher)

    def on_train_batch_start(self, trainer: _SteppingTrainer, *arguments: object) -> None:
        """Say which step begins."""
        _, _, batch_idx = arguments  # module, batch
        assert isinstance(batch_idx, int)
        self._begin = trainer.global_step
        self._exchange.mark_step(trainer.current_epoch, trainer.global_step, batch_idx)

    def on_after_backward(self, *_: object) -> None:
        """Find an exchange whose backward did not run, on the rank that made the mistake."""
        self._exchange.check_backward()

    def on_train_batch_end(self, trainer: _LoggingTrainer, *_: object) -> None:
        """Log the counters, where the batch completed another ``log_every_n_steps`` steps.

        Not by ``log_dict``: it costs milliseconds on every batch, logged or not.
        """
        every, end = trainer.log_every_n_steps, trainer.global_step
        if not self._log or every == 0 or self._begin // every == end // every:
            return
        counters = {f"exchange/{name}": value for name, value in self._exchange.stats().items()}
        for logger in trainer.loggers:
            logger.log_metrics(counters, step=end - 1)  # steps of a logger count from 0

    def on_exception(self, *arguments: object) -> None:
        """Tell the other ranks at once, which would otherwise wait for this one."""
        *_, exception = arguments  # after trainer and module
        assert isinstance(exception, BaseException)
        self._unwatch()  # there will be no teardown
        with suppress(CollectivesError):  # Lightning goes on with the exception itself
            self._exchange.abort(describe_error(exception))

    def teardown(self, *_: object, **__: object) -> None:
        """Close the exchange, if that was asked for."""
        self._unwatch()
        if self._close_on == "teardown":
            self._exchange.close()

    def _unwatch(self) -> None:
        if self._watcher is not None:
            WATCHERS[:] = [watcher for watcher in WATCHERS if watcher is not self._watcher]
            self._watcher = None


def _class_for(callback_class: type, exchange: ExchangeLike) -> type[_ExchangeHooks]:
    """Return one class for each exchange.

    A Trainer asks for ``configure_callbacks`` in each stage, and lets what it gets replace what it
    has of the same class: so it has one callback of each exchange, however many there are.
    """
    kinds = _kinds.setdefault(exchange, {})
    if callback_class not in kinds:
        bases, namespace = (_ExchangeHooks, callback_class), {"__module__": __name__}
        kinds[callback_class] = type("ExchangeCallback", bases, namespace)
    return kinds[callback_class]


def _is_callback_class(candidate: object) -> bool:
    return isinstance(candidate, type) and hasattr(candidate, "on_exception")
