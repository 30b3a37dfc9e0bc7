"""The attention of a checkpoint, computed by PyTorch."""

from pathlib import Path

import torch
from txport.models.attention_maps import attention_maps
from txport.models.checkpoint import load_checkpoint
from txport.runtime.arguments import check_reads_text
from txport.runtime.calls.requests import Call
from txport.runtime.errors import CheckpointError, InputError
from txport.runtime.options import Options
from txport.runtime.results import AttentionMaps
from txport.runtime.search.decoding import decode_all
from txport.runtime.text.tokenizer import Tokenizer, open_tokenizer
from txport.training.torch_engine import TorchEngine


def checkpoint_maps(
    directory: Path, text: str, target: str | None, options: Options
) -> tuple[AttentionMaps, Tokenizer, int]:
    """Return attention maps as `Translator.attention_maps` does for a bundle, the tokenizer, and the id of bos.

    Raises:
        CheckpointError: the checkpoint is damaged or has no tokenizer.
        InputError: a text is longer than the maximum of the model.
    """
    checkpoint = load_checkpoint(directory)
    check_reads_text(directory, checkpoint.config.feature_size)
    if checkpoint.tokenizer.kind == "none":
        raise CheckpointError(f"{directory} has no tokenizer: there is no text to draw")
    model = checkpoint.model
    config = checkpoint.config
    tokenizer = open_tokenizer(directory, checkpoint.tokenizer, config.vocabularies)
    engine = TorchEngine(model)
    sentence = Call.of(tokenizer, engine.limits, options.changed({"strict": True})).required_sentence(text, "the text")
    source = list(sentence.request.source_ids)
    if target is None:
        (result,) = decode_all(engine, [sentence.request])
        target_ids = result.ids
    else:
        target_ids = [*sentence.request.prefix[: sentence.forced], *tokenizer.encode_prefix(target), config.eos_id]
        if len(target_ids) > config.max_positions:
            raise InputError(
                f"the translation has {len(target_ids)} tokens, more than the {config.max_positions} that this model "
                "supports: shorten it"
            )
    lengths = torch.tensor([len(source)]), torch.tensor([len(target_ids)])
    with torch.no_grad():
        attention = attention_maps(model, torch.tensor([source]), lengths[0], torch.tensor([target_ids]), lengths[1])
    maps = AttentionMaps(
        source_ids=source,
        target_ids=target_ids,
        source_labels=tokenizer.source_pieces(source),
        target_labels=tokenizer.target_pieces(target_ids),
        encoder=attention.encoder[:, 0].numpy(),
        decoder=attention.decoder[:, 0].numpy(),
        cross=attention.cross[:, 0].numpy(),
        scores=attention.log_probabilities[0].tolist(),
    )
    return maps, tokenizer, config.bos_id
