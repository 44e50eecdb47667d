"""The house rules: which room may import which, and what a bare install needs."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail

SOURCE = Path(vitrail.__file__).parent
# A room imports only from rooms upstream of it.
ORDER = [
    "errors", "lazy", "whole", "models", "weights", "data", "report", "explain", "tasks", "train", "picture_model",
    "predictor", "predict", "evaluate", "doctor", "export", "serve", "cli",
]  # fmt: skip
FILES = sorted(p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.stem in ORDER)


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_room_imports_only_from_upstream(path):
    imported = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vitrail."):
            imported.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            imported |= {name.name.split(".")[1] for name in node.names if name.name.startswith("vitrail.")}
    downstream = {other for other in imported if ORDER.index(other) > ORDER.index(room(path))}
    assert downstream == set()


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
    files = [path.relative_to(SOURCE.parent).with_suffix("") for path in FILES]
    names = [".".join(path.parts).removesuffix(".__init__") for path in files]
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
    allowed |= {"jinja2", "markupsafe"}  # the second is how the first marks what is HTML already
    optional = {
        "sklearn": {"demo.py"},
        "pyarrow": {"tables.py", "embed.py"},
        "datasets": {"named.py"},
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
        "pycocotools": {"detect_metrics.py"},
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
