"""Cubins on disk, keyed by everything that can change them.

One file per kernel: a digest, a JSON header, the cubin. Writes are atomic; an entry that does not match its digest
counts as missing. Knows nothing of devices.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path

import platformdirs

from ninfer_nb.cuda.compiler import Binary, Resources
from ninfer_nb.cuda.errors import KernelError
from ninfer_nb.cuda.spec import KernelOptions, KernelSpec

_MAGIC = b"NINFERCUBIN1"
_TOOLS = ("numba-cuda", "numba", "llvmlite", "nvidia-nvvm", "nvidia-nvjitlink")


def default_directory() -> Path:
    """`$NINFER_CACHE_DIR`, or the user's cache directory for `ninfer`; cubins lie below it in `kernels`."""
    root = os.environ.get("NINFER_CACHE_DIR") or platformdirs.user_cache_dir("ninfer", appauthor=False)
    return Path(root) / "kernels"


class CubinCache:
    """A directory of cubins. Reading and writing never raise for a bad or unwritable entry: it is compiled again."""

    def __init__(self, directory: Path | None = None):
        self.directory = directory or default_directory()

    def path(self, spec: KernelSpec, arch: str) -> Path:
        return self.directory / f"{spec.name}-{arch}-{cache_key(spec, arch)}.bin"

    def load(self, spec: KernelSpec, arch: str) -> Binary | None:
        """The stored kernel, or None when it is absent or damaged."""
        try:
            return _decode(self.path(spec, arch).read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, spec: KernelSpec, arch: str, binary: Binary) -> None:
        """Writes to a temporary file beside the entry and renames it; a read-only directory is no error."""
        path = self.path(spec, arch)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".tmp-", delete=False) as file:
                file.write(_encode(binary))
            os.replace(file.name, path)
        except OSError:
            return


def _encode(binary: Binary) -> bytes:
    fields = asdict(binary)
    cubin = fields.pop("cubin")
    header = json.dumps(fields).encode()
    body = len(header).to_bytes(4, "little") + header + cubin
    return _MAGIC + hashlib.sha256(body).digest() + body


def _decode(data: bytes) -> Binary:
    start = len(_MAGIC) + 32
    body = data[start:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        raise ValueError("damaged cache entry")
    end = 4 + int.from_bytes(body[:4], "little")
    fields = json.loads(body[4:end])
    resources = fields.pop("resources")
    resources["warnings"] = tuple(resources["warnings"])
    options = KernelOptions(**fields.pop("options"))
    return Binary(**fields, options=options, resources=Resources(**resources), cubin=body[end:])


def cache_key(spec: KernelSpec, arch: str) -> str:
    """Digest of the sources, the static parameters (with their types), the architecture and the tools' versions."""
    parts = [spec.factory, repr(spec.static), arch, source_digest(spec.module), *_tool_versions()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@cache
def _tool_versions() -> tuple[str, ...]:
    versions = [f"python {sys.version_info[0]}.{sys.version_info[1]}"]
    for tool in _TOOLS:
        try:
            versions.append(f"{tool} {importlib.metadata.version(tool)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{tool} of the system's toolkit")
    return tuple(versions)


@cache
def source_digest(module: str) -> str:
    """Digest of the module's source and of every module it imports, directly or not, from its own top package."""
    digest = hashlib.sha256()
    for name, source in sorted(_sources(module).items()):
        digest.update(name.encode() + b"\0" + source + b"\0")
    return digest.hexdigest()


def _sources(module: str) -> dict[str, bytes]:
    packages = {module.partition(".")[0], __name__.partition(".")[0]}
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in packages:
            continue
        path = _source_path(name)
        if path is None:  # an attribute of a module, as in `from module import name`
            continue
        found[name] = path.read_bytes()
        waiting += _imports(found[name], name, is_package=path.name == "__init__.py")
    if module not in found:
        raise KernelError(f"the source of kernel module {module} was not found")
    return found


def _source_path(name: str) -> Path | None:
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(found.origin) if found and found.origin and found.origin.endswith(".py") else None


def _imports(source: bytes, name: str, is_package: bool) -> list[str]:
    names = []
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            names += [base] + [f"{base}.{alias.name}" for alias in node.names if alias.name != "*"]
    return names
