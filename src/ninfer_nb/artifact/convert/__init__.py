"""Hugging Face safetensors to `.ninfer` (`inventories.md` 7). Knows nothing of how a model runs."""

from .compare import compare
from .conversion import Conversion, Request, convert, report_path
from .sources import Companion, companion_kind

__all__ = ["Companion", "Conversion", "Request", "companion_kind", "compare", "convert", "report_path"]
