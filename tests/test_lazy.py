"""Packages whose names are imported when they are first asked for: the same names, whatever was imported before."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import vitrail

LAZY = ["vitrail", "vitrail.data", "vitrail.explain", "vitrail.models", "vitrail.predict", "vitrail.weights"]

AT_ONCE = {"VitrailError": "vitrail.errors", "__version__": "vitrail.version"}  # which wait for nothing


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("package", LAZY)
def test_a_type_checker_sees_the_names_that_there_are(package):
    """Under TYPE_CHECKING, in what is looked up, and in __all__: the same names, from the same modules."""
    module = importlib.import_module(package)
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert ast.unparse(checked.test) == "TYPE_CHECKING"
    seen = {name.name: node.module for node in checked.body for name in node.names}
    (looked_up,) = [
        ast.literal_eval(node.value.args[1])
        for node in checked.orelse
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "(__getattr__, __dir__)"
    ]
    assert seen == {name: home for home, names in looked_up.items() for name in names}
    assert {*module.__all__} - {*AT_ONCE} == {*seen}
    for name in module.__all__:
        assert name in dir(module)
        value = getattr(module, name)
        assert value is getattr(importlib.import_module({**AT_ONCE, **seen}[name]), name)
        assert not inspect.ismodule(value)


@pytest.mark.parametrize("package", LAZY)
def test_no_module_has_the_name_of_a_public_function(package):
    """Whoever imported the module would find it where the function is to be."""
    module = importlib.import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert modules & {*module.__all__} == set()


@pytest.mark.parametrize("package", LAZY)
def test_import_is_light(package):
    code = (
        f"import sys, {package}; print(vitrail.VitrailError.__name__, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert run(code) == ["VitrailError", "False", "False"]


def test_public_functions_stay_functions_whatever_was_imported_before():
    code = """
import vitrail.training.run, vitrail.predict.evaluation, vitrail.exporters, vitrail.tasks.reconstruct.task
from vitrail import evaluate, export, load, pretrain, train
public = vitrail.evaluate, vitrail.export, vitrail.load, vitrail.pretrain, vitrail.train
print(*(type(f).__name__ for f in public), public == (evaluate, export, load, pretrain, train))
print(vitrail.train is vitrail.training.run.train)
"""
    assert run(code) == ["function"] * 5 + ["True", "True"]


def test_rooms_come_by_their_names_and_other_names_do_not():
    assert run("import vitrail; print(type(vitrail.models).__name__, vitrail.data.decode.__name__)") == [
        "module",
        "vitrail.data.decode",
    ]
    with pytest.raises(AttributeError, match="module 'vitrail' has no attribute 'creat_model'"):
        vitrail.creat_model  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'creat_model'"):
        from vitrail import creat_model  # noqa: F401
    assert not hasattr(vitrail, "__wrapped__")


def test_what_a_room_lacks_is_named(tmp_path, monkeypatch):
    """Not as though the room itself were missing."""
    package = tmp_path / "rooms_of_a_test"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from vitrail.lazy import lazy\n__getattr__, __dir__ = lazy(__name__, {'json': ('dumps',)})\n"
    )
    (package / "room.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(tmp_path)
    module: ModuleType = importlib.import_module("rooms_of_a_test")
    assert type(module) is ModuleType
    assert module.dumps([1]) == "[1]"
    assert "dumps" in dir(module)
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        module.room  # noqa: B018


def test_a_public_name_can_be_replaced_and_put_back(monkeypatch):
    before = vitrail.train
    with monkeypatch.context() as patch:
        patch.setattr(vitrail, "train", len)
        assert vitrail.train is len
    assert vitrail.train is before
