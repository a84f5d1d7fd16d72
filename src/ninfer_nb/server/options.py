"""What `ninfer serve` is told beside the engine's options (`cli.md` 3.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from .work import Defaults

MIB = 1 << 20


@dataclass(frozen=True)
class ServerOptions:
    """Checked on construction; UsageError names the flag."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    model_id: str | None = None  # what clients call the model; None: the artifact's own
    cors: bool = False
    metrics: bool = True
    max_request_mib: int = 384
    request_log: Path | None = None
    store_records: int = 1024
    store_mib: int = 256
    stats_interval_ms: int = 5000
    keepalive_ms: int = 5000
    shutdown_timeout_ms: int = 30_000
    defaults: Defaults = field(default_factory=Defaults)

    def __post_init__(self) -> None:
        if self.model_id is not None and not self.model_id:
            raise UsageError("--model-id must not be empty")
        if self.keepalive_ms != 0 and not 1000 <= self.keepalive_ms <= 60_000:
            raise UsageError("--sse-keepalive-ms must be 0 or in [1000,60000]")

    @property
    def max_request_bytes(self) -> int:
        return self.max_request_mib * MIB
