"""Something to be done in the engine's thread, between two steps."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Order(Generic[T]):
    """A function and what it will return or raise."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.result: Future[T] = Future()

    def obey(self) -> None:
        try:
            self.result.set_result(self._function())
        except Exception as error:  # noqa: BLE001 - it is that of whoever gave the order
            self.result.set_exception(error)
