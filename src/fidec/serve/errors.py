"""Why a request is refused."""

from __future__ import annotations

# Every reason, with the status of HTTP. `/metrics` counts errors by reason.
STATUS = {
    "malformed": 400,  # no JSON, no msgpack, no object
    "field": 400,  # missing, or not what it has to be
    "shape": 400,
    "dtype": 400,
    "not_finite": 400,
    "too_large": 413,
    "encoding": 415,  # a compressed body
    "token": 401,
    "origin": 403,
    "overload": 503,
    "stopping": 503,
    "policy": 500,  # the policy gave no usable action
    "internal": 500,
}


class Refused(Exception):
    """A request that gets no action. The text names the field, what was found and what was expected."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason, self.status = reason, STATUS[reason]
