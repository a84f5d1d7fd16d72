"""Imports point one way: cli, server -> engine -> model -> ops -> cuda; artifact and frontend stand beside."""

import ast
from pathlib import Path

import pytest

import ninfer_nb

ROOT = Path(ninfer_nb.__file__).parent

ALLOWED = {
    "artifact": set(),
    "frontend": set(),
    "cuda": set(),
    "ops": {"cuda", "artifact"},
    "model": {"ops", "artifact"},
    "engine": {"model", "ops", "cuda", "artifact", "frontend"},
    "server": {"engine", "frontend"},
    "cli": {"engine", "server", "artifact", "frontend", "cuda"},
}
SHARED = {"errors", "__version__"}


def imported_packages(path: Path) -> set[str]:
    """Top-level members of ninfer_nb that a module imports, lazily or not."""
    package = ("ninfer_nb", *path.relative_to(ROOT).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ninfer_nb.")}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            parts = (*base, *(node.module.split(".") if node.module else ()))
            if parts[:1] == ("ninfer_nb",):
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_arrows(package):
    folder = ROOT / package
    for path in sorted(folder.rglob("*.py")):
        extra = imported_packages(path) - ALLOWED[package] - SHARED - {package}
        assert not extra, f"{path.relative_to(ROOT)} imports {sorted(extra)}"


def test_cuda_modules_are_imported_lazily_or_not_at_all():
    """The CPU path must start without the cuda extra: nothing outside cuda/ imports numba at module level."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] == "cuda":
            continue
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(n.split(".")[0] in {"numba", "llvmlite"} for n in names), path


def test_files_stay_small():
    long = {str(p.relative_to(ROOT)): n for p in ROOT.rglob("*.py") if (n := len(p.read_text().splitlines())) > 500}
    assert not long
