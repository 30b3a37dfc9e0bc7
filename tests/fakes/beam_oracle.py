"""Beam search by Hugging Face's `generate` itself, over the model of `memory_engine`."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from memory_engine import TOKENS, VOCABULARY, logits_after
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.generation.configuration_utils import GenerationConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from txport.runtime.search.requests import Hypothesis, Request
from txport.runtime.search.settings import Rules


class _Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "memory"


_NO_HYPOTHESIS = -1e7


class _Encoder(torch.nn.Module):
    """An encoder that returns its ids."""

    def forward(self, input_ids: Any, **_: object) -> BaseModelOutput:
        return BaseModelOutput(last_hidden_state=input_ids[:, :, None].float())


class HashModel(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The model of `memory_engine` as Hugging Face sees one; it computes each step from all ids, without caches."""

    config_class = _Config
    main_input_name = "input_ids"
    _supports_cache_class = False

    def __init__(self, eos_weight: float) -> None:
        super().__init__(_Config(is_encoder_decoder=True, vocab_size=VOCABULARY))
        self.eos_weight = eos_weight
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def get_encoder(self, *_: object, **__: object) -> Any:
        return _Encoder()

    def forward(
        self, input_ids: Any = None, decoder_input_ids: Any = None, encoder_outputs: Any = None, **_: object
    ) -> Any:
        sources = encoder_outputs.last_hidden_state[:, :, 0].long().tolist()
        logits = [
            torch.from_numpy(logits_after(source, fed, self.eos_weight))
            for source, fed in zip(sources, decoder_input_ids.tolist(), strict=True)
        ]
        return Seq2SeqLMOutput(logits=torch.stack(logits)[:, None], encoder_last_hidden_state=None)

    def prepare_inputs_for_generation(self, input_ids: Any, encoder_outputs: Any = None, **_: object) -> dict[str, Any]:
        return {"decoder_input_ids": input_ids, "encoder_outputs": encoder_outputs}


def generate(request: Request, limit: int, eos_weight: float) -> list[Hypothesis]:
    """Return the n best hypotheses of a request, computed by `transformers`."""
    search, rules = request.search, request.search.rules
    prompt = [TOKENS.bos, *request.prefix[request.forced :]]
    assert request.forced in (0, 1)
    config = GenerationConfig(
        num_beams=search.beam,
        num_return_sequences=search.n_best,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
        max_length=limit + 1,
        min_length=request.min_length + 1 if request.min_length else 0,
        forced_bos_token_id=request.prefix[0] if request.forced else None,
        **_rules(rules),
        pad_token_id=TOKENS.pad,
        eos_token_id=[TOKENS.eos, *rules.end_ids],
        decoder_start_token_id=TOKENS.bos,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    made = HashModel(eos_weight).generate(
        torch.tensor([list(request.source_ids)]), generation_config=config, decoder_input_ids=torch.tensor([prompt])
    )
    given = request.prefix[request.forced :]
    answers = [[*given, *_unpadded(ids[len(prompt) :], rules.end_ids)] for ids in made.sequences.tolist()]
    scores = [None] if search.beam == 1 else cast(Any, made.sequences_scores).tolist()
    # If there are fewer hypotheses, transformers adds some with probability 0.
    found = zip(answers, scores, strict=True)
    return [Hypothesis(ids, None, score) for ids, score in found if score is None or score > _NO_HYPOTHESIS]


def _rules(rules: Rules) -> dict[str, Any]:
    """Return the rules under Hugging Face's names, with None for unused rules."""
    return {
        "repetition_penalty": rules.repetition_penalty,
        "no_repeat_ngram_size": rules.no_repeat_ngram,
        "bad_words_ids": [list(word) for word in rules.bad_words] or None,
        "suppress_tokens": list(rules.suppress) or None,
        "begin_suppress_tokens": list(rules.begin_suppress) or None,
        "forced_eos_token_id": rules.forced_end,
        "renormalize_logits": rules.renormalize,
    }


def _unpadded(ids: Sequence[int], end_ids: Sequence[int]) -> list[int]:
    """Return the ids up to the first end, without the padding after it."""
    for position, token in enumerate(ids):
        if token == TOKENS.eos or token in end_ids:
            return list(ids[: position + 1])
    return list(ids)
