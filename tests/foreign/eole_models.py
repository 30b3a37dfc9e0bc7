"""Tiny Transformers of eole with random weights, which eole's classes create, save, load and run."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_models import MADE, padded, shake, write_json
from safetensors.torch import save_file
from torch import Tensor
from txport.models.transformer import Transformer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip(
        "eole.inference_engine",
        reason="needs eole: pip install --no-deps eole==0.6.4 pyonmttok configargparse six pyahocorasick rapidfuzz",
    )
    from eole.config import recursive_model_fields_set
    from eole.config.inference import InferenceConfig
    from eole.config.models import TransformerModelConfig
    from eole.config.run import PredictConfig
    from eole.constants import LayerNormFP32
    from eole.inference_engine import InferenceEnginePY
    from eole.inputters.inputter import dict_to_vocabs, vocabs_to_dict
    from eole.models.model import EncoderDecoderModel

PAD, UNK, BOS, EOS = "<blank>", "<unk>", "<s>", "</s>"
SPECIAL = [PAD, UNK, BOS, EOS]
WIDTH, ROWS = 32, 56
StepLogits = Callable[[list[list[int]]], Tensor]  # of hypotheses [width] -> [width, v]
_FINISHED = -65504.0  # eole's score of finished hypotheses: the minimum of float16
SPECIALS = {"pad_token": PAD, "unk_token": UNK, "bos_token": BOS, "eos_token": EOS}


def tokens(count: int = ROWS) -> list[str]:
    """Return special tokens and numbered ordinary tokens."""
    return [*SPECIAL, *(f"w{index}" for index in range(len(SPECIAL), count))]


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore the attention kernels that eole disables for all of PyTorch, and hide its deprecation warnings."""
    cuda = torch.backends.cuda
    names = ("math", "flash", "mem_efficient", "cudnn")
    before = {name: getattr(cuda, f"{name}_sdp_enabled")() for name in names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            for name, enabled in before.items():
                getattr(cuda, f"enable_{name}_sdp")(enabled)


@settings_restored()
def write_model(
    directory: Path,
    *,
    embeddings: dict[str, Any] | None = None,
    names: tuple[list[str], list[str]] | None = None,
    start: str = BOS,
    eos_bias: float = 2.7,
    seed: int = 5,
    scale: float = 1.2,
    parts: int = 1,
    **options: Any,
) -> Any:
    """Write a model as eole's ModelSaver does, with random weights of which none is neutral, and return it.

    Args:
        directory: directory to write.
        embeddings: options of eole's embeddings.
        names: source and target tokens.
        start: first input token of the decoder.
        eos_bias: bias of eos, so that answers end.
        seed, scale: seed and scale of the weights.
        parts: number of files of weights.
        options: options of eole's model.
    """
    given: dict[str, Any] = {
        **{"hidden_size": WIDTH, "layers": 2, "heads": 4, "transformer_ff": 48},
        **options,
        "embeddings": {"word_vec_size": WIDTH, **(embeddings or {})},
    }
    # eole derives some fields from others, writes them to the file, and applies them to both sides.
    config = TransformerModelConfig(**recursive_model_fields_set(TransformerModelConfig(**given)))
    source, target = names or (tokens(), tokens())
    vocabs = dict_to_vocabs({"src": source, "tgt": target, "decoder_start_token": start, "specials": SPECIALS})
    model = EncoderDecoderModel.build(config, vocabs, InferenceConfig(model_path="unused"))
    shake(model, seed=seed, scale=scale)
    for layer in model.decoder.transformer_layers:
        layer.context_attn.relative_attention_bias = None  # as on a GPU; on a CPU, eole 0.6 computes the logarithm of 0
    if config.share_decoder_embeddings:
        model.generator.weight.data *= 0.5  # otherwise each token predicts itself
    if model.generator.bias is not None:
        model.generator.bias.data[target.index(EOS)] = eos_bias
        model.generator.bias.data[target.index(PAD)] = -20.0  # eole does not forbid padding in answers
    else:
        model.generator.weight.data[target.index(EOS)] *= 2
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if config.share_embeddings:
        del state["tgt_emb.embeddings.weight"]
    if config.share_decoder_embeddings:
        del state["generator.weight"]
    directory.mkdir(exist_ok=True)
    for part in range(parts):
        tensors = {name: state[name] for name in sorted(state)[part::parts]}
        save_file(tensors, directory / f"model.{part:02}.safetensors")
    write_json(directory / "vocab.json", vocabs_to_dict(vocabs))
    fields = {"src_vocab": "unused", "data": {}, "training": {"model_path": "unused"}}
    write_json(directory / "config.json", {**fields, "model": recursive_model_fields_set(config)})
    return model.eval()


@settings_restored()
def predict(directory: Path, sources: list[list[str]], **options: Any) -> list[list[list[str]]]:
    """Return eole's hypotheses for each source, as tokens, computed by its search with caches."""
    config = PredictConfig(
        model_path=[str(directory)], src="unused", max_length=MADE, max_length_ratio=0, gpu_ranks=[], **options
    )
    engine = InferenceEnginePY(config)
    _, _, made = engine.infer_list([" ".join(source) for source in sources])
    return [[text.split() for text in texts] for texts in made]


def widened(model: Any) -> Any:
    """Return a copy of a model in float64, except norms that compute in float32."""
    model.double()
    for module in model.modules():
        if isinstance(module, LayerNormFP32):
            module.float()
    return model


@torch.inference_mode()
def logits(model: Any, sources: list[list[int]], targets: Tensor, pad: int) -> Tensor:
    """Return logits `[b, t, v]` of teacher-forced targets `[b, t]`, in the precision of the model."""
    ids, lengths = padded(sources, pad)
    # eole reads all targets except the last one, and needs at least two.
    states = model(ids, torch.cat([targets, targets[:, :1], targets[:, :1]], dim=1), lengths).dec_out
    made: Tensor = model.generator(states[:, : targets.shape[1]])
    return made


def searched(logits_of: StepLogits, start: int, eos: int, width: int) -> list[list[int]]:
    """Return the best hypotheses `[width]` of a reimplementation of eole's search, without a length penalty.

    A finished hypothesis keeps its place in the beam, so that `width` candidates are taken and not twice as many. The
    search ends when the best one is finished and `width` are.

    Args:
        logits_of: returns the logits `[width, v]` of the next token of hypotheses.
        start: first input id of the decoder.
        eos: id that ends a hypothesis.
        width: number of beams.
    """
    alive = [(0.0, [start])] + [(-math.inf, [start])] * (width - 1)
    ended: list[tuple[float, list[int]]] = []
    for step in range(MADE):
        last = logits_of([row for _, row in alive]).log_softmax(-1)
        scores = (last + torch.tensor([score for score, _ in alive], dtype=last.dtype)[:, None]).flatten()
        best = scores.topk(width)
        ranked = [
            (score, [*alive[index // last.shape[1]][1], index % last.shape[1]])
            for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        finished = [row[-1] == eos or step == MADE - 1 for _, row in ranked]
        ended += [each for each, end in zip(ranked, finished, strict=True) if end]
        if finished[0] and len(ended) >= width:
            break
        alive = [(_FINISHED if end else score, row) for (score, row), end in zip(ranked, finished, strict=True)]
    return [row[1:] for _, row in sorted(ended, key=lambda each: -each[0])[:width]]


def logits_of_eole(model: Any, source: list[int], pad: int) -> StepLogits:
    """Return a function for the logits of the next token, for one source, by eole's model."""
    return lambda rows: logits(model, [source] * len(rows), torch.tensor(rows), pad)[:, -1]


def logits_of_ours(model: Transformer, source: list[int], pad: int) -> StepLogits:
    """Return a function for the logits of the next token, for one source, by the imported model."""

    @torch.inference_mode()
    def step(rows: list[list[int]]) -> Tensor:
        ids, lengths = padded([source] * len(rows), pad)
        made: Tensor = model.decode(torch.tensor(rows), model.encode(ids, lengths), lengths)
        return made[:, -1]

    return step
