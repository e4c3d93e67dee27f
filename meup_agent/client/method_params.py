"""Parameters of the methods of our own, as records: written, and read strictly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from meup_agent.errors import RequestError, printable
from meup_agent.protocol.payloads import INVALID_PARAMS, without_meta

if TYPE_CHECKING:
    from meup_agent.client.messages import Request

Params = TypeVar("Params", bound=msgspec.Struct)


def write_params(params: msgspec.Struct) -> dict[str, Any]:
    """Parameters as JSON values."""
    written: dict[str, Any] = msgspec.to_builtins(params)
    return written


def read_params(request: Request, form: type[Params]) -> Params:
    """The parameters of a request.

    Raises:
        RequestError: They are not of that form.
    """
    try:
        return msgspec.convert(without_meta(request.params), form)
    except msgspec.ValidationError as error:
        said = f"{request.method} cannot be answered: {printable(str(error))}; correct its params"
        raise RequestError(INVALID_PARAMS, said) from None
