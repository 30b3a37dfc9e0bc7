"""Files as patches of one base: the manifests and the records of builds that every runtime must accept or refuse.

`tests/data/manifests/patches.json` and `tests/data/engines/patches.json` are read here and by `tests/cpp/patches.hpp`,
by the same rules. Each names its `base`, a file, and lists `good` and `bad` patches. A patch may have, and they are
applied in this order:

- `name`; for a bad one also `says`: the message after the file's name, or how it begins if `says` ends with "...";
- `of`: the good patch that it starts from; the first of `good` unless it says so;
- `copy`: JSON pointers, of where a copy goes and of what is copied. In an array of objects a name may stand for an
  index, and `-` appends;
- `put`: JSON pointers and the values that go there;
- `remove`, `reverse`: JSON pointers of what is removed, and of arrays and objects whose order is reversed;
- `style`: `one_line` or `escaped` (nothing but ASCII), if not one value a line;
- `text`: pairs of old and new; each old in the file's text becomes the new one, for faults below JSON;
- `bytes`: such pairs again, applied after the file's own hash is filled in; each character is one byte;
- `length`: the number of bytes that are kept;
- `file`: instead of all this, the whole file, as pieces and how often each is repeated.

A file with a field `sha256` (a manifest) gets its own hash, unless the patch sets that field itself.
`python tests/data/patches.py DIRECTORY` writes all files, as seeds for fuzzing.
"""

import copy
import hashlib
import json
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent
MANIFESTS, RECORDS = DATA / "manifests" / "patches.json", DATA / "engines" / "patches.json"
ZEROS = "0" * 64
STYLES: dict[str, dict[str, Any]] = {
    "lines": {"indent": 1, "ensure_ascii": False},
    "one_line": {"separators": (",", ":"), "ensure_ascii": False},
    "escaped": {"indent": 1},
}

Value = dict[str, Any]


class Patches:
    """The patches of one file, by name."""

    def __init__(self, file: Path) -> None:
        read = json.loads(file.read_bytes())
        self._base: Value = json.loads((file.parent / read["base"]).read_bytes())
        self._root = read["good"][0]["name"]
        self.good: dict[str, Value] = {patch["name"]: patch for patch in read["good"]}
        self.bad: dict[str, Value] = {patch["name"]: patch for patch in read["bad"]}
        assert len({**self.good, **self.bad}) == len(read["good"]) + len(read["bad"]), "a name stands there twice"

    def value(self, name: str) -> Value:
        """What a good patch makes of the base."""
        return self.patched(self.good[name])

    def data(self, patch: Value | str) -> bytes:
        """The file that a patch describes, given itself or by its name."""
        if isinstance(patch, str):
            patch = {**self.good, **self.bad}[patch]
        if "file" in patch:
            return b"".join(piece.encode("latin-1") * times for piece, times in patch["file"])
        value = self.patched(patch)
        signed = "sha256" in value and "/sha256" not in patch.get("put", {})
        data = text(value | {"sha256": ZEROS} if signed else value, patch.get("style", "lines"))
        data = _replaced(data, [(old.encode(), new.encode()) for old, new in patch.get("text", [])])
        data = sign(data) if signed else data
        data = _replaced(data, [(old.encode("latin-1"), new.encode("latin-1")) for old, new in patch.get("bytes", [])])
        return data[: patch.get("length", len(data))]

    def patched(self, patch: Value) -> Value:
        """What a patch makes of the good one that it starts from; it may be one that a test makes up."""
        parent = patch.get("of", self._root)
        value = copy.deepcopy(self._base) if patch.get("name") == parent else self.value(parent)
        for pointer, source in patch.get("copy", {}).items():
            holder, last = _place(value, source)
            put(value, pointer, holder[last])
        for pointer, new in patch.get("put", {}).items():
            put(value, pointer, new)
        for pointer in patch.get("remove", []):
            inner, last = _place(value, pointer)
            del inner[last]
        for pointer in patch.get("reverse", []):
            _reverse(value, pointer)
        return value


@cache
def manifests() -> Patches:
    return Patches(MANIFESTS)


@cache
def records() -> Patches:
    return Patches(RECORDS)


def text(value: Value, style: str = "lines") -> bytes:
    return (json.dumps(value, **STYLES[style]) + "\n").encode()


def sign(data: bytes) -> bytes:
    """A manifest's bytes with its own hash where the last 64 zeros stand."""
    start = data.rindex(ZEROS.encode())
    return data[:start] + hashlib.sha256(data).hexdigest().encode() + data[start + 64 :]


def fits(message: str, file: str, patch: Value) -> bool:
    """Whether this is the message that a bad patch must give, for a file of this name."""
    says = file + patch["says"]
    return message.startswith(says[:-3]) if says.endswith("...") else message == says


def put(value: Value, pointer: str, new: Any) -> None:
    """Replace or add what a JSON pointer points at."""
    inner, last = _place(value, pointer)
    if last == "-":
        inner.append(copy.deepcopy(new))
    else:
        inner[last] = copy.deepcopy(new)


def _place(value: Any, pointer: str) -> tuple[Any, Any]:
    """The array or object that holds what a pointer points at, and the index or key in it."""
    *path, last = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    for step in path:
        value = value[_index(value, step)]
    return value, _index(value, last)


def _index(value: Any, step: str) -> Any:
    if isinstance(value, dict) or step == "-":
        return step
    return int(step) if step.isdigit() else [item["name"] for item in value].index(step)


def _reverse(value: Value, pointer: str) -> None:
    inner: Any = value
    if pointer:
        holder, last = _place(value, pointer)
        inner = holder[last]
    if isinstance(inner, list):
        inner.reverse()
        return
    for key in reversed(list(inner)):
        inner[key] = inner.pop(key)


def _replaced(data: bytes, pairs: list[tuple[bytes, bytes]]) -> bytes:
    for old, new in pairs:
        assert old in data, old
        data = data.replace(old, new)
    return data


def _files() -> Iterator[tuple[Path, bytes]]:
    for kind, patches in (("manifest", manifests()), ("build", records())):
        for name, patch in {**patches.good, **patches.bad}.items():
            yield Path(kind, name), patches.data(patch)


if __name__ == "__main__":
    for file, data in _files():
        target = Path(sys.argv[1]) / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
