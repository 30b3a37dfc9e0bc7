"""Where files are, and which module may import what: with libraries really missing, in a fresh interpreter."""

import ast
import importlib.metadata
import importlib.util
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ["benchmarks", "exporter", "models", "runtime", "training"]

# Refuses modules by their full name or that of a package above them, then imports what it is told to.
IMPORT_WITHOUT = """
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        for refused in sys.argv[1].split():
            if name == refused or name.startswith(refused + "."):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
for module in sys.argv[2:]:
    importlib.import_module(module)
bare = {"benchmarks", "exporter", "models", "runtime", "training"} & set(sys.modules)
assert not bare, f"imported by their bare names: {bare}"
"""

OURS = "txport.exporter txport.models txport.training txport.benchmarks"
HEAVY = "torch onnx onnx_ir lightning transformers safetensors rich"
ENGINES = "onnxruntime sentencepiece click"
# optimum-onnx wants an older transformers than the other peers: it runs in an environment of its own.
ELSEWHERE = {"txport.benchmarks.contestants.optimum"}


def modules_of(package: str) -> list[str]:
    """`package` of txport, and all modules of it and of the packages inside it."""
    spec = importlib.util.find_spec(f"txport.{package}")
    assert spec is not None and spec.submodule_search_locations is not None
    found = [f"txport.{package}"]
    for module in pkgutil.iter_modules(list(spec.submodule_search_locations)):
        if module.name == "libtxport_engine":  # the fused engine's library, which is no module of Python's
            continue
        inner = f"{package}.{module.name}"
        found += modules_of(inner) if module.ispkg else [f"txport.{inner}"]
    return found


def assert_imports_without(refused: str, modules: list[str]) -> None:
    # -I: neither the working directory nor the environment may help.
    command = [sys.executable, "-I", "-c", IMPORT_WITHOUT, refused, *modules]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr


def test_modules_are_looked_for_in_sub_packages_too() -> None:
    folders = {
        package: importlib.util.find_spec(f"txport.{package}").submodule_search_locations for package in PACKAGES
    }
    for package, places in folders.items():
        files = [file for file in Path(next(iter(places))).rglob("*.py") if (file.parent / "__init__.py").exists()]
        assert len(files) == len(modules_of(package)) > 5


def source_files() -> list[Path]:
    found = [file for folder in [*PACKAGES, "tests"] for file in (ROOT / folder).rglob("*")]
    return [file for file in found if file.suffix in (".py", ".c", ".h", ".cpp", ".hpp")]


def test_every_folder_can_be_taken_in_at_a_glance() -> None:
    """At most 16 concepts a folder: a header and its source are one, and `__init__.py` is the folder itself.

    Importers are one format a file, beside what they share. Feature vectors make `runtime` one larger.
    """
    concepts: dict[Path, set[str]] = {}
    for file in source_files():
        if file.stem != "__init__":
            concepts.setdefault(file.parent.relative_to(ROOT), set()).add(file.stem)
    assert len(concepts) > 30
    importers = concepts.pop(Path("models/importers"))
    assert len(importers) <= 22
    assert len(concepts.pop(Path("runtime"))) <= 17
    assert {str(folder): len(names) for folder, names in concepts.items() if len(names) > 16} == {}


def test_a_class_name_is_used_once() -> None:
    """In the library; examples are programs of their own."""
    places: dict[str, list[str]] = {}
    for file in source_files():
        if file.suffix == ".py" and not {"tests", "examples"} & set(file.relative_to(ROOT).parts):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert len(places) > 200
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_what_tests_share_is_in_folders_of_its_own() -> None:
    """These are on the path; no test module imports from another one, or from a package `tests`."""
    wrong = []
    for file in (ROOT / "tests").rglob("*.py"):
        name = str(file.relative_to(ROOT))
        is_test = file.stem.startswith("test_") or file.name in ("conftest.py", "cuda_checks.py")
        apart = file.is_relative_to(ROOT / "tests" / "gpu")  # with what runs it on other machines
        assert apart or is_test != (file.parent.name in ("helpers", "foreign", "fakes", "data")), name
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{name}: {module}" for module in modules if re.match(r"(tests|test_\w+|conftest)\b", module)]
    assert wrong == []


def needs_everything() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'txport[dev]'")


def test_the_whole_runtime_runs_without_pytorch_onnx_and_the_rest_of_txport() -> None:
    assert_imports_without(f"{OURS} {HEAVY}", modules_of("runtime"))


def test_bundles_can_be_read_with_numpy_alone() -> None:
    modules = [
        "txport.runtime",
        *(f"txport.runtime.{name}" for name in ("errors", "files", "bundle.manifest", "search.decoding")),
    ]
    assert_imports_without(f"{OURS} {HEAVY} {ENGINES}", modules)


def test_engines_are_built_without_pytorch_and_onnx() -> None:
    refused = f"txport.models txport.training txport.benchmarks {HEAVY} onnxruntime sentencepiece"
    assert_imports_without(refused, ["txport.exporter.build_command"])
    assert_imports_without(f"txport.models txport.training {HEAVY}", ["txport.exporter.verify_command"])


def test_models_need_pytorch_and_safetensors_only() -> None:
    needs_everything()
    assert_imports_without(f"onnx onnx_ir lightning rich txport.exporter txport.training {ENGINES}", ["txport.models"])


def test_training_does_not_need_the_exporter() -> None:
    needs_everything()
    assert_imports_without("txport.exporter txport.benchmarks", modules_of("training"))


def test_the_exporter_does_not_need_training_nor_its_libraries() -> None:
    needs_everything()
    assert_imports_without("txport.training txport.benchmarks lightning tensorboard", modules_of("exporter"))


def test_a_device_can_be_measured_without_pytorch() -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'txport[bench]'")
    commands = [
        "txport.benchmarks.attention_command",
        "txport.benchmarks.pictures.png",
        "txport.benchmarks.bench_command",
        "txport.benchmarks.compare_command",
        "txport.benchmarks.report.plots",
    ]
    assert_imports_without(
        "txport.models txport.training torch onnx onnx_ir safetensors transformers ctranslate2", commands
    )


def test_systems_differ_in_files_memory_and_cores_alone() -> None:
    """Tests of these are what runs a second time, as on a system without POSIX: PORTABLE_TESTS of the Makefile."""
    pattern = re.compile(r"^from txport\.runtime\.system import (.*)$", re.MULTILINE)
    sources = {file.relative_to(ROOT / "runtime"): file.read_text() for file in (ROOT / "runtime").rglob("*.py")}
    found = {str(file): name for file, text in sources.items() for name in pattern.findall(text)}
    assert found == {
        "files.py": "Lock, copy_mode, exchange, synchronise, user",
        "libraries.py": "c_function",
        "open_bundle.py": "cores",
        "engines/directories.py": "is_private",
        "engines/ort_session.py": "limited",
        "engines/native.py": "library_name",  # the same everywhere but on Windows and macOS
    }


# From the top, as in `Layers of the runtime` of pyproject.toml, with the rooms that Python does not have.
CPP_LAYERS = """
abi
translator
documents
scoring
results
calls engines
fused device search text
engine
bundle
arguments cores half new_file options utf8
errors ids system
"""


def cpp_includes() -> list[tuple[str, str, str]]:
    """File, room and included room of every include of the C++ runtime's own headers."""
    source = ROOT / "runtime/cpp/src"
    # "../engine.hpp": the folder of the file has a header of the same name.
    includes = re.compile(r'^#include "(?!txport/)(?:\.\./)?([^"]+)"', re.MULTILINE)
    found = []
    for file in sorted(source.rglob("*.[chi]*")):
        name = file.relative_to(source)
        for header in includes.findall(file.read_text(encoding="utf-8")):
            assert (source / header).is_file(), f"{name}: {header}"
            found.append((str(name), room_of(str(name)), room_of(header)))
    return found


def room_of(file: str) -> str:
    return file.partition("/")[0].partition(".")[0]


def test_cpp_includes_only_lower_layers() -> None:
    heights = {name: -number for number, layer in enumerate(CPP_LAYERS.split("\n")) for name in layer.split()}
    includes = cpp_includes()
    assert len(includes) > 300 and {room for include in includes for room in include[1:]} == set(heights)
    wrong = [each for each in includes if each[1] != each[2] and heights[each[2]] >= heights[each[1]]]
    assert wrong == []


def test_the_layers_of_cpp_are_those_of_python() -> None:
    """Rooms of the same name have the same order, and none stands beside another in one language only."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition('name = "Layers of the runtime"')[2]
    layers = contract.partition("layers = [")[2].partition("]")[0]
    python = [re.findall(r"\w+", layer) for layer in layers.split('",')]
    cpp = [layer.split() for layer in CPP_LAYERS.strip().split("\n")]
    shared = {name for layer in python for name in layer} & {name for layer in cpp for name in layer}
    assert len(shared) > 12

    def heights(layers: list[list[str]]) -> dict[str, int]:
        rooms = [names for layer in layers if (names := shared & {*layer})]
        return {name: number for number, names in enumerate(rooms) for name in names}

    one, other = heights(python), heights(cpp)
    upside_down = [
        (high, low) for high in shared for low in shared if one[high] < one[low] and other[high] > other[low]
    ]
    assert upside_down == []


def test_every_module_can_be_imported() -> None:
    needs_everything()
    everything = [module for package in PACKAGES for module in modules_of(package)]
    assert_imports_without("nothing", [module for module in everything if module not in ELSEWHERE])


def commands() -> list[str]:
    return sorted(p.name for p in importlib.metadata.entry_points(group="console_scripts") if p.name.startswith("tx-"))


def test_the_commands_are_these() -> None:
    assert commands() == [
        "tx-attention",
        "tx-bench",
        "tx-build",
        "tx-distill",
        "tx-evaluate",
        "tx-export",
        "tx-get",
        "tx-import",
        "tx-inspect",
        "tx-pack",
        "tx-push",
        "tx-serve",
        "tx-shortlist",
        "tx-train",
        "tx-translate",
        "tx-translate-corpus",
        "tx-triton",
        "tx-verify",
    ]


# They take seconds to import, and a text needs none of them.
SLOW = "torch onnxruntime onnx onnx_ir lightning transformers matplotlib sacrebleu"


@pytest.mark.parametrize("command", [*commands(), "tx-bench compare"])
def test_every_command_shows_its_help_at_once(command: str) -> None:
    name, *word = command.split()
    if name not in ("tx-translate", "tx-translate-corpus", "tx-inspect", "tx-serve", "tx-triton", "tx-build"):
        needs_everything()
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    run = f"sys.argv = {[name, *word, '--help']!r}; from {entry.module} import {entry.attr} as f"
    look = f"found = set({SLOW!r}.split()) & set(sys.modules); assert not found, found"
    program = f"import sys; {run}\ntry: f()\nfinally: {look}"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: {command}")
    assert "--help" in done.stdout and "--version" in done.stdout
