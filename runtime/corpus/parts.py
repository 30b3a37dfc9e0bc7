"""Manifests of parts. A part of the output counts once its manifest exists, which is written last.

`_parts/NAME.json` describes the input, the settings and the content of the part. A resumed run therefore detects parts
that are missing, damaged, or results of another input or other options.
"""

import json
from dataclasses import asdict, dataclass

from txport.runtime.bundle.strict_json import decode, parse
from txport.runtime.corpus.locations import Store
from txport.runtime.errors import BundleError, InputError

FOLDER = "_parts"
ERRORS = "_errors"
VERSION = 1


@dataclass(frozen=True)
class OutputPart:
    """Part of the output.

    Attributes:
        version: of this format.
        input: the file that its rows come from.
        number: of the part among those of that file, from 0.
        first: its first row in that file, from 0.
        rows: rows of the input.
        last: whether the file ends with it.
        input_sha256: of these rows.
        output: the name of its file.
        output_rows, output_bytes, output_sha256: of that file.
        tokens: generated target tokens.
        counts: rows by their fault.
        settings: all values that affect the translation of a row, each as JSON.
    """

    version: int
    input: str
    number: int
    first: int
    rows: int
    last: bool
    input_sha256: str
    output: str
    output_rows: int
    output_bytes: int
    output_sha256: str
    tokens: int
    counts: dict[str, int]
    settings: dict[str, str]

    def write(self, store: Store) -> None:
        """Write the manifest where `read` finds it."""
        with store.write(name_of(self.output)) as file:
            file.write(f"{json.dumps(asdict(self), indent=1)}\n".encode())

    def check_settings(self, settings: dict[str, str], store: Store) -> None:
        """Refuse to continue with different settings.

        Raises:
            InputError: a setting differs.
        """
        names = sorted({*settings, *self.settings})
        for name in names:
            then = self.settings.get(name, "none")
            now = settings.get(name, "none")
            if then != now:
                raise InputError(
                    f"{store.path(self.output)} was written with {name} {then}, now it is {now}: "
                    "use the same options, or choose another output directory"
                )


def name_of(output: str) -> str:
    """Return the name of the manifest of a part's file."""
    return f"{FOLDER}/{output}.json"


def read(store: Store, output: str) -> OutputPart | None:
    """Return the manifest of a part; None if it does not exist, or is incomplete after an interrupted upload."""
    data = store.read(name_of(output))
    try:
        if data is None:
            value = None
        else:
            value = parse(data, store.path(name_of(output)))
    except BundleError:
        return None
    if value is None:
        return None
    return decode(OutputPart, value, store.path(name_of(output)), InputError)
