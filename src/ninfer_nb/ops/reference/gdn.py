"""Gated DeltaNet: causal convolution, recurrent and chunked delta rule (`model.md` section 8)."""

from __future__ import annotations

import numpy as np

from .numeric import silu, softplus

CHUNK = 64


def controls(a: np.ndarray, b: np.ndarray, a_log: np.ndarray, dt_bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log decay g <= 0 and write strength beta in (0, 1), both [T, Hv] float32, from the a and b projections."""
    g = -np.exp(a_log) * softplus(a + dt_bias)
    with np.errstate(over="ignore"):
        beta = np.float32(1) / (np.float32(1) + np.exp(-b))
    return g.astype(np.float32), beta.astype(np.float32)


def causal_conv(u: np.ndarray, taps: np.ndarray, history: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u [n, C], taps [4, C] oldest first, history [3, C] -> SiLU(conv) [n, C], new history [3, C]."""
    stream = np.concatenate([history, u])
    n = u.shape[0]
    out = taps[0] * stream[:n]
    for j in range(1, taps.shape[0]):
        out = out + taps[j] * stream[j : j + n]
    return silu(out), stream[n:]


def l2_normalise(x: np.ndarray) -> np.ndarray:
    """x / sqrt(sum(x^2) + 1e-6) over the last axis."""
    return x / np.sqrt(np.einsum("...d,...d->...", x, x)[..., None] + np.float32(1e-6))


def recurrent(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray
) -> np.ndarray:
    """Delta rule one token at a time (`model.md` 8.4).

    q, k [n, Hk, Dk] raw, v [n, Hv, Dv], g and beta [n, Hv], state [Hv, Dv, Dk] updated in place -> [n, Hv, Dv].
    """
    group = v.shape[1] // k.shape[1]
    q = np.repeat(l2_normalise(q), group, axis=1)
    k = np.repeat(l2_normalise(k), group, axis=1)
    alpha = np.exp(g)
    scale = state.dtype.type(k.shape[-1] ** -0.5)
    out = np.empty(v.shape, state.dtype)
    for t in range(v.shape[0]):
        state *= alpha[t][:, None, None]
        error = v[t] - np.matmul(state, k[t][:, :, None])[:, :, 0]
        state += (beta[t][:, None] * error)[:, :, None] * k[t][:, None, :]
        out[t] = scale * np.matmul(state, q[t][:, :, None])[:, :, 0]
    return out


def chunked(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray
) -> np.ndarray:
    """The same function as `recurrent`, by WY chunks of 64 tokens (`model.md` 8.5); a tail shorter than that recurs."""
    n = v.shape[0]
    whole = n - n % CHUNK
    group = v.shape[1] // k.shape[1]
    qn = np.repeat(l2_normalise(q[:whole]), group, axis=1).transpose(1, 0, 2)  # [Hv, n, Dk]
    kn = np.repeat(l2_normalise(k[:whole]), group, axis=1).transpose(1, 0, 2)
    out = np.empty(v.shape, state.dtype)
    for start in range(0, whole, CHUNK):
        span = slice(start, start + CHUNK)
        out[span] = _chunk(qn[:, span], kn[:, span], v[span].transpose(1, 0, 2), g[span].T, beta[span].T, state)
    if whole < n:
        out[whole:] = recurrent(q[whole:], k[whole:], v[whole:], g[whole:], beta[whole:], state)
    return out


def _chunk(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray
) -> np.ndarray:
    """One chunk of all heads: q, k [Hv, 64, Dk] normalised, v [Hv, 64, Dv], g, beta [Hv, 64] -> [64, Hv, Dv]."""
    total = np.cumsum(g, axis=1, dtype=state.dtype)
    # exp of a difference, never a ratio of exponentials: both of those may underflow
    decay = np.exp(np.minimum(total[:, :, None] - total[:, None, :], 0))
    lower = np.tri(CHUNK, dtype=bool)
    keys = np.matmul(k, k.transpose(0, 2, 1))
    mixing = np.where(np.tri(CHUNK, k=-1, dtype=bool), beta[:, :, None] * keys * decay, 0)
    inverse = np.linalg.inv(np.eye(CHUNK, dtype=state.dtype) + mixing)
    u = inverse @ (beta[:, :, None] * v)
    w = inverse @ ((beta * np.exp(total))[:, :, None] * k)
    fresh = u - w @ state.transpose(0, 2, 1)
    scores = np.where(lower, np.matmul(q, k.transpose(0, 2, 1)) * decay, 0)
    out = np.exp(total)[:, :, None] * (q @ state.transpose(0, 2, 1)) + scores @ fresh
    last = total[:, -1:]
    state *= np.exp(last)[:, :, None]
    state += (np.exp(last - total)[:, :, None] * fresh).transpose(0, 2, 1) @ k
    return (state.dtype.type(k.shape[-1] ** -0.5) * out).transpose(1, 0, 2)
