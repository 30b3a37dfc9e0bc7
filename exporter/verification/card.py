"""README.md of a bundle, from manifest and report: contents, verification and usage."""

from txport.exporter.verification.report import VerificationReport
from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.console.words import plural

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
| layers | {model.encoder_layers} encoder, {model.decoder_layers} decoder |
| width | d_model {model.d_model}, {model.heads} heads of {model.head_dim} |
| vocabulary | {model.source_vocabulary} source, {model.target_vocabulary} target |
| largest | batch {limits.batch}, source {limits.source} tokens, target {limits.target} tokens |
| tokenizer | {_tokenizer(manifest.tokenizer)} |
| precision | {manifest.precision.summary}, {islands} nodes kept in float32 |
| lowerings | {", ".join(manifest.lowerings)} |

## Verification

{_verification(report)}

## Use

```sh
echo "..." | tx-translate {name}
tx-inspect {name} --check
```
"""


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
    return "\n".join([*lines, *(f"\n{sentence[0].upper()}{sentence[1:]}." for sentence in sentences)])
