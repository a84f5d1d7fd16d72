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
