"""README.md of a bundle, from manifest and report: contents, verification and usage."""

from txport.exporter.verification.report import VerificationReport
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.console.words import plural, printable

CARD = "README.md"


def card(name: str, manifest: Manifest, report: VerificationReport | None) -> str:
    """Return the Markdown for the bundle `name`."""
    model = manifest.model
    limits = manifest.limits
    islands = sum(len(island.nodes) for island in manifest.precision.islands)
    return f"""# {name}

ONNX graphs of an encoder-decoder Transformer, by txport {manifest.made_by.version}. `manifest.json` is the contract.

| | |
|---|---|
{_input(manifest)}| layers | {model.encoder_layers} encoder, {model.decoder_layers} decoder |
| width | d_model {model.d_model}, {model.heads} heads of {model.head_dim} |
| vocabulary | {model.source_vocabulary} source, {model.target_vocabulary} target |
| largest | batch {limits.batch}, source {limits.source} tokens, target {limits.target} tokens |
| tokenizer | {_tokenizer(manifest.tokenizer)} |
| precision | {manifest.precision.summary}, {islands} nodes kept in float32 |
| lowerings | {", ".join(manifest.lowerings)} |

## Verification

{_verification(report)}

## Use

{_use(name, manifest)}
"""


def _input(manifest: Manifest) -> str:
    """Return the row of a model that reads feature vectors, or nothing."""
    if (size := manifest.model.feature_size) is None:
        return ""
    what = f"feature vectors of {size} numbers"
    if manifest.model.encoder_layers == 0:
        encoder = printable(manifest.external_encoder or "an encoder without a name").replace("|", "\\|")
        what = f"last hidden states of an external encoder, {encoder}: {size} numbers each"
    rate = "" if manifest.frame_rate is None else f", {manifest.frame_rate:g} per second"
    return f"| input | {what}{rate} |\n"


def _use(name: str, manifest: Manifest) -> str:
    if manifest.model.feature_size is None:
        return f'```sh\necho "..." | tx-translate {name}\ntx-inspect {name} --check\n```'
    return f"""```python
from txport.runtime.translator import Translator

translator = Translator({name!r})
(result,) = translator.translate_features([vectors])  # an array of the shape [vectors, {manifest.model.feature_size}]
print(result.text)
```

`tx-inspect {name} --check` checks the files and the cases of `golden.json`."""


def _tokenizer(tokenizer: TokenizerDescription) -> str:
    languages = tokenizer.languages
    if languages is None:
        return tokenizer.kind
    count = len(languages.source or languages.target)
    defaults = ", ".join(name for name in (languages.source_default, languages.target_default) if name)
    return f"{tokenizer.kind}, {count} languages" + (f" ({defaults} by default)" if defaults else "")


def _verification(report: VerificationReport | None) -> str:
    if report is None:
        return "Not verified: exported with `--no-verify`."
    lines = [
        f"{'Passed' if report.passed else '**FAILED**'} against PyTorch in float32 ({report.arithmetic}), on "
        f"{plural(report.sentences, 'sentence')}: {report.origin}.",
        "",
        "| lowering | sentences | identical ids | largest logit error | mean logit error |",
        "|---|---|---|---|---|",
    ]
    for each in report.lowerings:
        errors = f"{each.max_logit_error:.2e} | {each.mean_logit_error:.2e}"
        lines.append(f"| {each.lowering} | {each.sentences} | {each.token_identical} | {errors} |")
    qualities = [
        f"{each.lowering}: {each.quality.summary}" for each in report.lowerings if each.quality and each.quality.loss
    ]
    sentences = [*qualities, *report.notes]
    if (weights := report.weights) is not None:
        sentences += weights.failures or [f"all {weights.numbers:,} weights are the checkpoint's"]
    if report.original is not None:
        sentences += report.original.lines
    return "\n".join([*lines, *(f"\n{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)])
