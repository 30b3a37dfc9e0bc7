"""What is imported when, and what is said when it is not there."""

import ctypes
import gc
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run
from toy import BUNDLE
from txport.runtime import Translator, entry
from txport.runtime.errors import MissingLibrary
from txport.runtime.libraries import cuda_provider, needs, without_collection
from txport.runtime.system import POSIX


def test_a_missing_library_names_the_command() -> None:
    with pytest.raises(MissingLibrary, match=r"nowhere_to_be_found is not installed: pip install 'txport\[train\]'"):
        with needs("train"):
            import nowhere_to_be_found.deep  # noqa: F401


def test_our_own_mistakes_stay_what_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"txport\.runtime\.nowhere"), needs("ort"):
        import txport.runtime.nowhere  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name"), needs("ort"):
        from txport.runtime.errors import Nothing  # noqa: F401


def test_garbage_is_collected_again_after_an_import() -> None:
    """Also after one that fails; and whoever has turned the collector off finds it so."""
    with pytest.raises(MissingLibrary), needs("train"), without_collection():
        assert not gc.isenabled()
        import nowhere_to_be_found  # noqa: F401
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_there_may_be_no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert cuda_provider() is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, "ONNX Runtime runs this bundle (tx-inspect shows why)"), ({"engine": "ort"}, "engine ort is ONNX Runtime")],
)
def test_without_onnxruntime_the_reason_is_short(
    options: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of the choice is tx-inspect's, which names the missing library once."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for name in [name for name in sys.modules if name.startswith("txport.runtime.engines.ort")]:
        monkeypatch.delitem(sys.modules, name)
    words = f"{reason}, and onnxruntime is not installed: pip install 'txport[ort]'"
    with pytest.raises(MissingLibrary) as error:
        Translator(BUNDLE, "cpu", **options)
    assert str(error.value) == words
    done = run(entry, "tx-inspect", BUNDLE, "--device", "cpu", "--check")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"tx-inspect: engine ort is ONNX Runtime, and {words.partition(', and ')[2]}\n"


IMPORTED = """
import sys
{0}
print(" ".join(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import txport.runtime", "numpy onnxruntime sentencepiece click torch onnx"),
        ("from txport.runtime import Manifest", "onnxruntime sentencepiece click torch onnx"),
        ("import txport.runtime.search.decoding", "onnxruntime sentencepiece click torch onnx"),
        ("from txport.runtime import Translator, Translation", "click torch onnx"),
        ("import txport.runtime.entry", "numpy onnxruntime sentencepiece click torch onnx"),
    ],
)
def test_imports_are_cheap(code: str, absent: str) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED.format(code)], capture_output=True, text=True, check=True)
    assert not set(absent.split()) & set(done.stdout.split())


def test_public_names() -> None:
    import txport.runtime

    for name in txport.runtime.__all__:
        assert getattr(txport.runtime, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = txport.runtime.nothing


def test_nothing_is_reported_or_kept_elsewhere(tmp_path: Path) -> None:
    code = f"from txport.runtime import Translator; Translator({str(BUNDLE)!r}).translate(['one'])"
    subprocess.run([sys.executable, "-c", code], check=True, env={"HOME": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(
    not POSIX or not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs an allocator that can be told, as glibc"
)
def test_memory_that_is_kept_is_taken_again_without_page_faults() -> None:
    """Blocks of 24 MB, which glibc asks the system for, and gives back, each time: 6,000 pages."""
    script = """
import resource
import numpy as np
from txport.runtime.libraries import keep_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        blocks = [np.ones(3_000_000) for _ in range(2)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = faults()
keep_memory()
faults()
print(given_back, faults())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert kept < 100 < given_back


WINDOWS = """
import os, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
sys.modules.pop("fcntl", None)
for name in ("sched_getaffinity", "getuid", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
from txport.runtime import Translator
from txport.runtime.files import new_directory, new_file
from pathlib import Path
translator = Translator(sys.argv[1], device="cpu")
print(translator.translate(["the cat sees a bird"])[0].ids)
with new_directory(Path(sys.argv[2], "new")) as directory, new_file(directory / "file") as file:
    file.write(b"whole")
"""


def test_it_translates_and_writes_without_what_windows_lacks(tmp_path: Path) -> None:
    """The modules that only Unix has cannot be imported there, and functions of `os` are missing."""
    done = subprocess.run([sys.executable, "-c", WINDOWS, BUNDLE, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{Translator(BUNDLE, device='cpu').translate(['the cat sees a bird'])[0].ids}\n"
    assert (tmp_path / "new" / "file").read_bytes() == b"whole"


def test_words_around_the_sentence() -> None:
    with pytest.raises(MissingLibrary) as error, needs("hub", "it is fetched", "; or unpack it"):
        import nowhere_at_all  # noqa: F401
    assert str(error.value) == (
        "it is fetched, and nowhere_at_all is not installed: pip install 'txport[hub]'; or unpack it"
    )
