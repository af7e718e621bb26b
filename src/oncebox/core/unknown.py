"""Which errors of a call to the outside leave open whether it happened.

Clients have trees of their own and share no base class, so they are told apart by the names in their
ancestry. In doubt a call is unknown: a person or a policy is asked, where a guess would call twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from oncebox import errors

_UNKNOWN = (TimeoutError, ConnectionError, errors.HandlerTimeout, errors.UnknownEffect)
_NEVER_LEFT = re.compile(
    r"Connect(Error|Timeout|TimeoutError)|PoolTimeout|NewConnectionError|ClientConnectorError"
    r"|ConnectionRefusedError"
)
"""No connection was made, so nothing was asked for."""
_LOST = re.compile(
    r".*Timeout(Error|Exception)?|(Network|Transport|Protocol|Read|Write|Connection|ConnectionClosed"
    r"|ServerDisconnected|ClientConnection|IncompleteRead)Error|IncompleteRead"
)


def is_unknown(error: BaseException) -> bool:
    """True when the call may have happened all the same."""
    if isinstance(error, errors.UnknownEffect):
        return True
    names = list(_ancestry(error))
    if any(_NEVER_LEFT.fullmatch(name) for name in names):
        return False
    return isinstance(error, _UNKNOWN) or any(_LOST.fullmatch(name) for name in names)


def _ancestry(error: BaseException) -> Iterator[str]:
    return (kind.__name__ for kind in type(error).__mro__)
