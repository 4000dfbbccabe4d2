"""The token guard as a transport under an SDK's blocking client (SPEC D14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minutebook.providers.guard import Guard, Provider, inner_transport
from minutebook.providers.sdk_http import own_error
from minutebook.sync.driving import drive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

    from httpx2 import BaseTransport, Request, Response

    from minutebook.model.context import ContextWindow
    from minutebook.ports import Observer
else:
    BaseTransport = object  # the HTTP library is loaded by the first request and not by a name


class ContextGuardTransport(BaseTransport):
    """The guard under a blocking SDK client: see `minutebook.ContextGuardTransport`."""

    def __init__(
        self,
        *,
        provider: Provider,
        context: ContextWindow,
        transport: BaseTransport | None = None,
        qualified: Sequence[str] = (),
        on_event: Observer | None = None,
    ) -> None:
        self._guard = Guard(provider, context, qualified, on_event, blocking=True)
        self._inner = inner_transport(transport, "handle_request", "HTTPTransport")

    def handle_request(self, request: Request) -> Response:
        """Return the response to `request`: see `minutebook.ContextGuardTransport.handle_async_request`."""
        return drive(self._guard.send(request, self._inner.handle_request))

    def surface(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
        """Raise a refusal as it is, and guard nothing by itself: see `minutebook.ContextGuardTransport.surface`."""
        try:
            returned = call_next(request)
        except Exception as error:
            refusal = own_error(error) or error
        else:
            return drive(self._guard.carried(returned))
        raise refusal

    def close(self) -> None:
        """Close the transport that carries the requests."""
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)
