"""tx-inspect: print the contents of a bundle and the engine that would run it, and check that it is intact."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from txport.runtime.bundle.argument import BUNDLE
from txport.runtime.bundle.manifest import GOLDEN, Manifest
from txport.runtime.bundle.names import origin_of
from txport.runtime.bundle.strict_json import encode
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.console.flags import DEVICE, ENGINE, TRUST_ENGINES
from txport.runtime.console.words import printable
from txport.runtime.engines.build_record import BuildRecord
from txport.runtime.engines.choice import FUSED, choose, installed, why_not_fused
from txport.runtime.engines.directories import ENGINES, directories, untrusted, user_engines
from txport.runtime.errors import BundleError, CheckFailed, EngineError, InputError, MissingLibrary, TxportError
from txport.runtime.version import VERSION


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("bundle", type=BUNDLE)
@click.option(
    "--check",
    is_flag=True,
    help="Compare all files with their hashes and run the cases of golden.json. Exit with 1 on a difference.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@DEVICE
@ENGINE
@click.option("--lowering", help="Decoder step graph to check: ort, scatter or tensorscatter. [default: all]")
@TRUST_ENGINES
def main(
    bundle: Path, check: bool, as_json: bool, device: str, engine: str, lowering: str | None, trust_engines: bool
) -> None:
    """Print the manifest of BUNDLE and the engine that would run it. With --check, verify its files and its answers."""
    if not bundle.exists():
        if bundle.exists():
            reason = "is not a directory"
        else:
            reason = "does not exist"
        raise InputError(f"{bundle} {reason}: give the directory that tx-export wrote, or a file of tx-pack")
    try:
        manifest = Manifest.load(bundle)
        checks = list[str]()
        if check:
            checks += _check(bundle, manifest, device, engine, lowering, trust_engines)
    except (BundleError, EngineError) as error:
        if check:
            raise CheckFailed(str(error)) from error
        raise
    choice = choose(manifest, device, engine, lowering, bundle, trust_engines)
    if as_json:
        value: dict[str, Any] = {"manifest": encode(manifest), "choice": encode(choice), "installed": installed()}
        if check:
            value["checks"] = checks
        click.echo(json.dumps(value, indent=1))  # only ASCII: controls of a terminal are escaped
    else:
        library = installed() or "ONNX Runtime, not installed: pip install 'txport[ort]'"
        if choice.directory is not None:
            library = str(BuildRecord.load(Path(choice.directory)).library)
        if choice.engine == FUSED:
            library = f"txport {VERSION}"
        name, step = choice.attempts[0]
        words = [library, f"device {choice.device}", f"engine {name}"]
        if step:
            words.append(f"lowering {step}")
        rows = list(_rows(manifest))
        if origin := origin_of(bundle):
            rows.append(("fetched from", origin))
        rows += _engine_rows(bundle, manifest)
        rows.append(("runs on", f"{', '.join(words)}: {choice.reason}"))
        click.echo(printable(_table([*rows, *(("checked", line) for line in checks)])))


def _check(
    bundle: Path, manifest: Manifest, device: str, engine: str, lowering: str | None, trust_engines: bool
) -> list[str]:
    """Run all checks and return one line for each.

    Raises:
        BundleError, EngineError, CheckFailed: the first check that failed.
    """
    manifest.check_files(bundle, hashes=lambda name: True)
    total = sum(entry.bytes for entry in manifest.files.values())
    report = [f"{len(manifest.files)} files of {total:,} bytes have the sizes and hashes of the manifest"]
    # Imported here, so that tx-inspect without --check needs neither ONNX Runtime nor SentencePiece.
    from txport.runtime.golden import check_translator, load_golden
    from txport.runtime.translator import Translator

    golden = load_golden(bundle)
    passed_over = list[TxportError]()
    attempts = choose(manifest, device, engine, lowering, bundle, trust_engines).attempts
    for name, step in attempts:
        try:
            translator = Translator(bundle, device, name, step, trust_engines=trust_engines)
        except (BundleError, MissingLibrary) as error:
            # The hashes of the files are correct. So the installed version is too old for this lowering, or a library
            # is not installed.
            passed_over.append(error)
            attempt = f"engine {name}"
            if step:
                attempt = f"lowering {step}"
            report.append(f"{attempt} was not run: {error}")
            continue
        if differences := check_translator(translator, golden):
            first = differences[0]
            count = len({difference.case for difference in differences})
            raise CheckFailed(
                f"{count} of {len(golden.cases)} cases of {bundle / GOLDEN} differ with {translator.engine.name}; "
                f"case {first.case} in the {first.what}: expected {first.expected}, found {first.actual}"
            )
        report.append(f"{len(golden.cases)} cases of {GOLDEN} give the same ids with {translator.engine.name}")
    if len(passed_over) == len(attempts):
        raise passed_over[0]
    return report


def _rows(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield the manifest's main facts as (name, value) pairs."""
    model = manifest.model
    tokens = manifest.tokens
    verification = manifest.verification
    yield "made by", f"{manifest.made_by.name} {manifest.made_by.version} (format {manifest.format_version})"
    yield (
        "model",
        f"{model.encoder_layers}+{model.decoder_layers} layers, d_model {model.d_model}, "
        f"{model.heads} heads of {model.head_dim}, vocabulary {model.source_vocabulary} -> {model.target_vocabulary}",
    )
    if model.feature_size is not None:
        rate = "" if manifest.frame_rate is None else f", {manifest.frame_rate:g} per second"
        yield "input", f"feature vectors of {model.feature_size} numbers{rate}"
    if manifest.external_encoder is not None:
        yield "encoder", f"external, {manifest.external_encoder}: the vectors are its last hidden states"
    yield "tokens", ", ".join(f"{name} {token}" for name, token in encode(tokens).items())
    for name, sizes in encode(manifest.dimensions).items():
        yield f"{name} size", f"{sizes['min']} to {sizes['max']}, tuned for {sizes['opt']}"
    precision = manifest.precision
    yield "precision", precision.summary
    for island in precision.islands:
        yield "in float32", f"{len(island.nodes)} nodes of {island.graph}: {island.reason}"
    for graph in manifest.graphs:
        facts = [graph.file, *(f"{domain or 'ONNX'} opset {version}" for domain, version in graph.opsets.items())]
        if graph.optional:
            facts.append("optional")
        yield "graph", f"{graph.name}: {', '.join(facts)}"
    if manifest.parameters is not None:
        state = "usable here"
        if against := why_not_fused(manifest):
            state = f"not used here: {against}"
        yield "parameters", f"{len(manifest.parameters.tensors)} tensors for the fused engine, which is {state}"
    yield from _tokenizer_rows(manifest.tokenizer)
    settings = encode(manifest.generation)
    if settings:
        listed_settings = ", ".join(f"{name} {json.dumps(value)}" for name, value in settings.items())
        yield "generation", f'{listed_settings}: with generation="model"'
    yield "files", f"{len(manifest.files)}, {sum(entry.bytes for entry in manifest.files.values()):,} bytes"
    if verification is None:
        yield "verified", "no: exported without verification"
    else:
        yield (
            "verified",
            f"{'passed' if verification.passed else 'FAILED'}: {verification.token_identical} of "
            f"{verification.sentences} sentences identical to PyTorch, {verification.batch_identical} in any batch, "
            f"largest logit error {verification.max_logit_error:.2g}" + f"; engines {', '.join(verification.engines)}",
        )


def _engine_rows(bundle: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield a row for each folder of TensorRT engines, fitting or not: those of this user, then those of the bundle."""
    if directories(bundle / ENGINES):
        yield "engines", untrusted(bundle)
    for directory in [*directories(user_engines(manifest)), *directories(bundle / ENGINES)]:
        try:
            record = BuildRecord.load(directory)
        except BundleError as error:
            yield "engines", str(error)
            continue
        gpu = f"{record.gpu.name or 'any GPU'} of compute capability {', '.join(record.gpu.compute_capabilities)}"
        yield (
            "engines",
            f"{directory.name}: {record.library}, {gpu} "
            f"({record.gpu.compatibility}), lowering {record.lowering}, {record.sizes}",
        )


def _tokenizer_rows(tokenizer: TokenizerDescription) -> Iterator[tuple[str, str]]:
    sides = [side for side in (tokenizer.source, tokenizer.target) if side is not None]
    names = [name for side in sides for name in (side.model, side.vocabulary) if name is not None]
    yield "tokenizer", f"{tokenizer.kind} {' and '.join(dict.fromkeys(names))}".strip()
    if (languages := tokenizer.languages) is None:
        return
    for side in ("source", "target"):
        table, default = languages.of(side)
        if table:
            labels = [f"{name} (default)" if name == default else name for name in table]
            yield f"{side} languages", f"{len(table)}: {', '.join(labels)}"
    if languages.in_text:
        yield "", "a text may begin with >>language<<"


def _table(rows: list[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
