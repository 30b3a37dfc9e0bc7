"""Makes `tests/data/engines`: records of builds that every runtime must accept or refuse, and choices among them.

As `make_manifests.py`: each bad record has one fault, which its name tells, and `index.json` has words that the message
must contain. `choice.json` has cases of choosing: what is installed, what the bundle's files are, which directories
there are, which one must be chosen and the exact reason why each other one is not.
Write them again with `python tests/data/make_build_records.py`.
"""

import copy
import json
from pathlib import Path
from typing import Any

from make_manifests import write_fixtures

DIRECTORY = Path(__file__).parents[1] / "data" / "engines"

Value = dict[str, Any]

_A, _B, _C, _D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
FILES = {"onnx/encoder.onnx": _A, "onnx/decoder_step.scatter.onnx": _B, "onnx/weights.bin": _C}
H200 = {"name": "NVIDIA H200", "compute_capability": "9.0"}
L4 = {"name": "NVIDIA L4", "compute_capability": "8.9"}
TRT_8_6 = {"name": "tensorrt", "version": "8.6.0"}
TRT_10_3 = {"name": "tensorrt", "version": "10.3.0"}
RTX = {"name": "tensorrt_rtx", "version": "1.7.1.116"}


def sizes(least: int, best: int, most: int) -> Value:
    return {"min": least, "opt": best, "max": most}


def profile(batch: int, target: int | None) -> Value:
    """A bucket as tx-build makes it: encoders take any batch up to it, steps exactly it."""
    return {
        "batch": sizes(1 if target is None else batch, batch, batch),
        "source": sizes(1, 32, 256),
        "target": None if target is None else sizes(target, target, target),
    }


def engine(role: str, file: str, profiles: list[Value]) -> Value:
    return {"role": role, "file": file, "bytes": 1000, "sha256": _D, "profiles": profiles}


def base() -> Value:
    """TensorRT 8.6 on an H200: all buckets in one file."""
    return {
        "format_version": 1,
        "made_by": {"name": "txport", "version": "0.1.0"},
        "library": TRT_8_6,
        "gpu": {"name": "NVIDIA H200", "compute_capabilities": ["9.0"], "compatibility": "exact"},
        "cuda": {"driver": "13.0", "runtime": "12.4"},
        "version_compatible": False,
        "bundle": FILES,
        "lowering": "scatter",
        "id_type": "int32",
        "precision": {"type": "float16", "proof": "inspector", "layers": {"float16": 120, "float32": 4}},
        "flags": {"optimization_level": 3, "workspace": 4294967296},
        "engines": [
            engine("encoder", "encoder.plan", [profile(1, None), profile(32, None)]),
            engine("decoder_step", "decoder_step.plan", [profile(b, t) for b in (1, 32) for t in (32, 128)]),
        ],
        "build_seconds": 31.5,
        "peak_memory": 1234567890,
    }


def rtx() -> Value:
    """TensorRT-RTX, built without a GPU for two capabilities: a file for each cache length."""
    return base() | {
        "library": RTX,
        "gpu": {"name": None, "compute_capabilities": ["8.6", "8.9"], "compatibility": "same_compute_capability"},
        "cuda": {"driver": None, "runtime": None},
        "bundle": {"onnx/decoder_step.tensorscatter.onnx": _B, "onnx/encoder.onnx": _A, "onnx/weights.bin": _C},
        "lowering": "tensorscatter",
        "id_type": "int64",
        "precision": {"type": "float32", "proof": "network", "layers": {"float32": 99}},
        "flags": {"optimization_level": 5, "workspace": None},
        "engines": [
            engine("encoder", "encoder.plan", [profile(8, None)]),
            *(engine("decoder_step", f"decoder_step.{t}.plan", [profile(1, t), profile(8, t)]) for t in (32, 64)),
        ],
        "build_seconds": 2,
    }


def portable() -> Value:
    """TensorRT 10.3 for any GPU since Ampere, and for later versions of 10."""
    gpu = {"name": "NVIDIA L4", "compute_capabilities": ["8.9"], "compatibility": "ampere_plus"}
    return base() | {"library": TRT_10_3, "gpu": gpu, "version_compatible": True, "id_type": "int64"}


def put(*path: Any, to: Any) -> bytes:
    value: Any = copy.deepcopy(base())
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return text(value)


def without(*path: Any) -> bytes:
    value: Any = copy.deepcopy(base())
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return text(value)


def text(value: Any) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def good() -> dict[str, bytes]:
    return {"tensorrt_8_6": text(base()), "rtx_for_two_gpus": text(rtx()), "portable": text(portable())}


def bad() -> dict[str, tuple[bytes, str]]:
    """Name: (file, words of the message)."""
    encoder, step = base()["engines"]
    first, second = step["profiles"][:2]
    return {
        "empty": (b"", "JSON"),
        "array": (b"[]\n", "object"),
        "newer_format": (put("format_version", to=2), "format_version 2, but this txport reads up to 1"),
        "format_version_text": (put("format_version", to="1"), "format_version"),
        "format_version_missing": (without("format_version"), "format_version"),
        "repeated_field": (text(base()).replace(b'"lowering"', b'"id_type": "int32", "lowering"'), "twice"),
        "unknown_field": (put("temperature", to=1), "temperature"),
        "unknown_field_of_a_profile": (put("engines", 0, "profiles", 0, "heads", to=1), "heads"),
        "missing_field": (without("id_type"), "id_type"),
        "missing_target": (without("engines", 0, "profiles", 0, "target"), "target"),
        "unknown_library": (put("library", "name", to="polygraphy"), "library.name"),
        "version_of_words": (put("library", "version", to="8.6-ga"), "library.version"),
        "version_of_one_number": (put("library", "version", to="10"), "library.version"),
        "no_capability": (put("gpu", "compute_capabilities", to=[]), "compute_capabilities"),
        "capability_as_sm": (put("gpu", "compute_capabilities", to=["sm90"]), "sm90"),
        "exact_without_name": (put("gpu", "name", to=None), "exact"),
        "exact_for_two": (put("gpu", "compute_capabilities", to=["8.6", "8.9"]), "exact"),
        "unknown_compatibility": (put("gpu", "compatibility", to="any"), "gpu.compatibility"),
        "bundle_of_nothing": (put("bundle", to={}), "bundle is empty"),
        "bundle_hash_short": (put("bundle", "onnx/weights.bin", to="c"), "onnx/weights.bin"),
        "lowering_of_onnxruntime": (put("lowering", to="ort"), "lowering"),
        "ids_of_bool": (put("id_type", to="bool"), "id_type"),
        "precision_of_bfloat16": (put("precision", "type", to="bfloat16"), "precision.type"),
        "unproven": (put("precision", "proof", to="hope"), "precision.proof"),
        "layers_in_fractions": (put("precision", "layers", to={"float16": 1.5}), "float16"),
        "workspace_text": (put("flags", "workspace", to="4G"), "workspace"),
        "no_engines": (put("engines", to=[]), "encoder"),
        "no_encoder": (put("engines", to=[step]), "encoder"),
        "two_encoders": (put("engines", to=[encoder, encoder | {"file": "other.plan"}, step]), "encoder"),
        "no_step": (put("engines", to=[encoder]), "decoder_step"),
        "same_file_twice": (put("engines", 1, "file", to="encoder.plan"), "twice"),
        "file_in_a_folder": (put("engines", 1, "file", to="more/step.plan"), "more/step.plan"),
        "file_above": (put("engines", 1, "file", to=".."), "'..'"),
        "file_hidden": (put("engines", 1, "file", to=".step.plan"), ".step.plan"),
        "engine_of_no_bytes": (put("engines", 1, "bytes", to=0), "size"),
        "engine_hash_in_capitals": (put("engines", 1, "sha256", to="D" * 64), "sha256"),
        "no_profiles": (put("engines", 0, "profiles", to=[]), "no profiles"),
        "encoder_with_target": (put("engines", 0, "profiles", to=[first]), "target"),
        "step_without_target": (put("engines", 1, "profiles", 0, "target", to=None), "target"),
        "range_that_falls": (put("engines", 1, "profiles", 0, "source", to=sizes(1, 300, 256)), "source"),
        "batch_of_zero": (put("engines", 0, "profiles", 0, "batch", to=sizes(0, 1, 1)), "batch"),
        "same_bucket_twice": (put("engines", 1, "profiles", to=[first, second, first]), "batch of 1"),
    }


def case(name: str, gpu: Value, library: Value, builds: Value, chosen: str | None, reasons: dict[str, str]) -> Value:
    return {
        "name": name,
        "gpu": gpu,
        "library": library,
        "files": FILES | {"onnx/decoder_step.tensorscatter.onnx": _B},
        "builds": builds,
        "chosen": chosen,
        "reasons": reasons,
    }


def choices() -> list[Value]:
    """What is here, what there is, what must be chosen and why not the rest."""
    return [*_choices_of_machines(), *_choices_of_records()]


def _choices_of_machines() -> list[Value]:
    """The records are right; GPUs and libraries differ."""
    exact = base()
    all_three = {"a": rtx(), "b": portable(), "c": exact}
    h200, l4, trt86 = "NVIDIA H200 (9.0)", "NVIDIA L4 (8.9)", "TensorRT 8.6.0"
    return [
        case(
            "the exact GPU and version",
            H200,
            TRT_8_6,
            all_three,
            "c",
            {
                "a": f"needs TensorRT-RTX 1.7.1.116, but {trt86} is installed",
                "b": f"needs TensorRT 10.3.0, but {trt86} is installed",
            },
        ),
        case(
            "another GPU",
            L4,
            TRT_8_6,
            {"c": exact},
            None,
            {"c": f"is for {h200}, but this machine has {l4}"},
        ),
        case(
            "one of the compute capabilities",
            L4,
            RTX,
            all_three,
            "a",
            {
                "b": "needs TensorRT 10.3.0, but TensorRT-RTX 1.7.1.116 is installed",
                "c": "needs TensorRT 8.6.0, but TensorRT-RTX 1.7.1.116 is installed",
            },
        ),
        case(
            "none of the compute capabilities",
            H200,
            RTX,
            {"a": rtx()},
            None,
            {"a": f"is for compute capability 8.6, 8.9, but this machine has {h200}"},
        ),
        case(
            "a later version of the same generation",
            H200,
            TRT_10_3 | {"version": "10.15.1.29"},
            {"b": portable()},
            "b",
            {},
        ),
        case(
            "a later generation",
            H200,
            TRT_10_3 | {"version": "11.0.0"},
            {"b": portable()},
            None,
            {"b": "needs TensorRT 10.3.0, but TensorRT 11.0.0 is installed"},
        ),
        case(
            "an earlier version",
            H200,
            TRT_10_3 | {"version": "10.0.1"},
            {"b": portable()},
            None,
            {"b": "needs TensorRT 10.3.0, but TensorRT 10.0.1 is installed"},
        ),
        case(
            "older than Ampere",
            {"name": "Tesla T4", "compute_capability": "7.5"},
            TRT_10_3,
            {"b": portable()},
            None,
            {"b": "is for compute capability 8.0 and later, but this machine has Tesla T4 (7.5)"},
        ),
    ]


def _choices_of_records() -> list[Value]:
    """The machine is right; the records differ."""
    exact, small = base(), copy.deepcopy(base())
    small["engines"][1]["profiles"] = [profile(b, 128) for b in (1, 8)]
    return [
        case(
            "another bundle",
            H200,
            TRT_8_6,
            {"c": exact | {"bundle": FILES | {"onnx/weights.bin": _D}}},
            None,
            {"c": "was built from another bundle"},
        ),
        case(
            "built from a file that the bundle has not got",
            H200,
            TRT_8_6,
            {"c": exact | {"bundle": FILES | {"onnx/more.bin": _D}}},
            None,
            {"c": "was built from another bundle"},
        ),
        case("the larger batch of two", H200, TRT_8_6, {"a": small, "c": exact}, "c", {}),
        case("the first name of two alike", H200, TRT_8_6, {"b": exact, "a": exact}, "a", {}),
        case(
            "what a build is writing is not looked at",
            H200,
            TRT_8_6,
            {".c.txport-0a1b2c3d": exact},
            None,
            {},
        ),
        case(
            "a record of a newer format",
            H200,
            TRT_8_6,
            {"c": exact | {"format_version": 2}},
            None,
            {
                "c": "build.json has format_version 2, but this txport reads up to 1: install a newer txport or build "
                "the engines again with this one"
            },
        ),
    ]


def write(directory: Path) -> None:
    """Write all files and the index."""
    write_fixtures(directory, good(), bad())
    (directory / "choice.json").write_text(json.dumps(choices(), indent=1) + "\n")


if __name__ == "__main__":
    write(DIRECTORY)
