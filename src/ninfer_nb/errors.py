"""Errors whose message is ready to be shown to a user, without a traceback."""

from __future__ import annotations


class NInferError(Exception):
    """Base of every expected failure. `str(error)` names the field or byte and what was expected."""


class ArtifactError(NInferError, ValueError):
    """A `.ninfer` file, or a source checkpoint, is not what its contract says."""


class UsageError(NInferError, ValueError):
    """A flag, an option or a combination of them is invalid."""


class RequestError(NInferError, ValueError):
    """One request (messages, prompt, sampling) is invalid; the engine itself is fine."""


class CapacityError(UsageError):
    """The memory plan does not fit, or the asked KV capacity is out of range; both numbers are named."""


class ContextLengthExceeded(RequestError):
    """The prompt, or what the request may produce, can never fit into this engine."""


class Overloaded(NInferError):
    """As many requests are outstanding as the engine takes."""


class QueueTimeout(NInferError):
    """The request was not started before its deadline."""


class Unavailable(NInferError):
    """The engine is stopping or has failed; it takes no requests."""


class NonFiniteLogits(NInferError):
    """The model produced NaN or infinity for this request, which ends; others go on."""
