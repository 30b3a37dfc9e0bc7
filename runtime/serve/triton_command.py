"""tx-triton: a model repository for Triton Inference Server from a bundle."""

import json
import re
from importlib.resources import files
from pathlib import Path

import click
from txport.runtime.arguments import check_reads_text
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.console.flags import DEVICE, THREADS
from txport.runtime.errors import InputError
from txport.runtime.files import new_directory

# Inputs and outputs of the Triton model. Texts have Triton's type BYTES, which protocol buffers call TYPE_STRING.
_CONFIG = """\
# Written by tx-triton. Requests are not batched by Triton: their texts join the batch that runs.
backend: "python"
max_batch_size: 0
input [
  {{ name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] }},
  {{ name: "SOURCE" data_type: TYPE_STRING dims: [ 1 ] optional: true }},
  {{ name: "TARGET" data_type: TYPE_STRING dims: [ 1 ] optional: true }}
]
output [
  {{ name: "TRANSLATION" data_type: TYPE_STRING dims: [ -1 ] }},
  {{ name: "TOKENS" data_type: TYPE_INT32 dims: [ -1 ] }}
]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{parameters}
"""


def config(bundle: Path, device: str, threads: int) -> str:
    """Return the text of config.pbtxt. Its kind is KIND_CPU because txport, not Triton, selects the device."""
    values = {"bundle": str(bundle), "device": device, "threads": str(threads)}
    # A JSON string is valid in the text format of protocol buffers, with Unicode unescaped.
    lines = (
        f'parameters {{ key: "{name}" value: {{ string_value: {json.dumps(value, ensure_ascii=False)} }} }}'
        for name, value in values.items()
    )
    return _CONFIG.format(parameters="\n".join(lines))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory of the model in a Triton model repository.",
)
@click.option("--bundle-path", help="Path of the bundle on the server. [default: its present path]")
@DEVICE
@THREADS
def main(bundle: Path, output: Path, bundle_path: str | None, device: str, threads: int) -> None:
    """Write a model of Triton's Python backend that translates with BUNDLE: config.pbtxt and 1/model.py.

    The directory name is the name of the model. The Python of tritonserver needs txport.
    """
    check_reads_text(bundle, Manifest.load(bundle).model.feature_size)
    if not re.fullmatch(r"[\w.-]+", output.name):
        raise InputError(f"{output.name!r} is not a name of a Triton model: use letters, digits, '.', '_' and '-'")
    if bundle_path:
        place = Path(bundle_path)
    else:
        place = bundle.resolve()
    with new_directory(output) as directory:
        (directory / "config.pbtxt").write_text(config(place, device, threads), encoding="utf-8")
        (directory / "1").mkdir()
        model = files("txport.runtime.serve").joinpath("triton/model.py").read_text(encoding="utf-8")
        (directory / "1" / "model.py").write_text(model, encoding="utf-8")
    click.echo(f"{output}: tritonserver --model-repository {output.parent}")
