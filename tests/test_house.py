"""The house rules: which room may import which, and what a bare install needs."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail

SOURCE = Path(vitrail.__file__).parent
# A room imports only from rooms upstream of it.
ORDER = [
    "version", "errors", "lazy", "whole", "options", "reasons", "environment", "console_image", "console",
    "distributed", "models", "weights", "data", "report", "inference", "explain", "tasks", "training", "predict",
    "doctor", "exporters", "serve", "cli",
]  # fmt: skip
ENDS = {"__init__", "__main__"}  # which bring everything together, and nobody imports from
FILES = sorted(path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.stem not in ENDS)


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    """Its dotted name, without that of the package."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Everything that may run, inside functions too; not what is for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from (other, *statements(other))
        else:
            yield from (child, *statements(child))


def imports(path: Path) -> set[str]:
    """The modules of vitrail that a file imports, at its head or inside of functions."""
    found = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        for name in [name.removeprefix("vitrail.") for name in names if name.startswith("vitrail.")]:
            while name and name not in MODULES:  # a name in a module
                name = name.rpartition(".")[0]
            found |= {name} - {""}
    return found - {module(path)}


def test_every_room_has_its_place():
    assert {room(path) for path in FILES} == {*ORDER}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_from_upstream(path):
    imported = {name.split(".")[0] for name in imports(path)}
    downstream = {other for other in imported if ORDER.index(other) > ORDER.index(room(path))}
    assert downstream == set()


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The groups of nodes that reach one another."""
    reached = {}
    for start in graph:
        seen, coming = set(), [*graph[start]]
        while coming:
            if (name := coming.pop()) not in seen:
                seen.add(name)
                coming += graph[name]
        reached[start] = seen
    return {
        frozenset(other for other in graph if other in reached[name] and name in reached[other])
        for name in graph
        if name in reached[name]
    }


def test_a_cycle_is_found_however_long():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"a", "f"}}
    assert cycles(graph) == {frozenset("abc"), frozenset("f")}


def test_no_modules_import_one_another():
    """Also not inside of functions, where a cycle only shows on the day that somebody moves the import up."""
    found = cycles({name: imports(path) for name, path in MODULES.items()})
    assert sorted(map(sorted, found)) == []


@pytest.mark.slow
def test_any_file_can_be_the_first_to_be_imported():
    """Packages whose names come on demand import their files in any order: none may lean on what came before."""
    code = """
import gc, importlib, os, sys
import torch, torchvision.models.detection, matplotlib.figure, PIL.Image, safetensors.torch, tyro, fastapi  # once
gc.freeze(); gc.disable()  # to look through all that for garbage takes longer than to import a file
wrong = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        wrong.append(name)
print(*wrong)
"""
    names = [f"vitrail.{name}" for name in MODULES]
    names = names if "VITRAIL_LONG" in os.environ else names[::6]  # a minute for all
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
    assert done.stdout == "\n", done.stderr[-3000:]


def test_a_bare_install_builds_and_predicts_without_peers_or_extras(tmp_path):
    """In a process where everything but the core dependencies is hidden."""
    code = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"timm", "transformers", "sklearn", "scipy", "pandas", "onnx", "datasets"}:
            raise ModuleNotFoundError(f"hidden: {name}", name=name)
sys.meta_path.insert(0, Hidden())
import vitrail
from PIL import Image
path = vitrail.save_weights(vitrail.create_model("vit_ti16", depth=1, num_classes=3), "model.safetensors")
print(len(vitrail.load(path, device="cpu").predict(Image.new("RGB", (64, 48)), top=2)[0]))
print(sorted({m.split(".")[0] for m in sys.modules} & {"timm", "transformers"}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["2", "[]"]


def test_the_core_dependencies_are_the_few_that_are_declared():
    """Everything that src/ imports at all is the standard library, a core dependency, or the demo's extra."""
    allowed = {"torch", "torchvision", "numpy", "PIL", "safetensors", "huggingface_hub", "tyro", "rich", "matplotlib"}
    allowed |= {"jinja2", "markupsafe", "yaml"}  # the second is how the first marks what is HTML already
    optional = {
        "sklearn": {"demo.py"},
        "pyarrow": {"tables.py", "embed.py"},
        "datasets": {"named_datasets.py"},
        "onnx": {"onnx.py"},
        "onnx_ir": {"onnx.py"},
        "onnxscript": {"onnx.py"},
        "onnxruntime": {"onnx.py"},
        "wandb": {"log.py"},
        "mlflow": {"log.py"},
        "fastapi": {"app.py", "answers.py", "run.py"},
        "uvicorn": {"run.py"},
        "pydantic": {"answers.py"},
        "starlette": {"app.py"},
        "pycocotools": {"metrics.py"},
        "triton": {"short_attention.py"},
    }
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            for name in {n.split(".")[0] for n in names} - {"vitrail"} - set(sys.stdlib_module_names) - allowed:
                assert path.name in optional.get(name, set()), f"{path.name} imports {name}"
