"""Common parts of importers for Hugging Face models: config.json, generation settings, and layer names of BART."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from txport.models.config import BANNED, LARGEST, Config
from txport.models.importers.adapters import with_adapter
from txport.models.importers.generation import (
    check_vocabulary,
    generation_notes,
    generation_settings,
    id_list,
    word_lists,
)
from txport.models.importers.layers import FAIRSEQ, map_layers
from txport.models.importers.plan import ImportPlan
from txport.models.importers.settings import Settings, read_json
from txport.models.importers.weights import read_directory
from txport.runtime.bundle.schema import Generation
from txport.runtime.errors import CheckpointError

ACTIVATIONS = {
    **{"relu": "relu", "silu": "silu", "swish": "silu"},
    **{"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"},
}


class HuggingFaceModel(Settings):
    """Directory written by `save_pretrained`: the fields of config.json, and the weights.

    Attributes:
        directory: the directory.
        plan: its weights; none are mapped yet.
        prefix: prefix of tensor names before the model without head; empty if it was saved without a head.
        notes: sentences for the user.

    Raises:
        CheckpointError: a file is missing, damaged or in another format.
    """

    def __init__(self, directory: Path, adapter: Path | None = None) -> None:
        super().__init__(directory / "config.json", read_json(directory / "config.json"))
        # Like `generate`: if generation_config.json exists, generation settings in config.json are ignored.
        file = directory / "generation_config.json"
        generation_fields = read_json(file, optional=True)
        self._generated_from_config = not file.is_file() or bool(generation_fields.get("_from_model_config"))
        if self._generated_from_config:
            self._generation = {**_with_decoder(self.fields), **generation_fields}
        else:
            self._generation = generation_fields
        self.generation_file = str(file if file.is_file() else self.file)
        self.directory = directory
        tensors = read_directory(directory)
        self._untied = False
        if adapter is not None:
            tensors, self._untied = with_adapter(tensors, adapter)
        self.plan = ImportPlan(tensors, directory)
        # `BartModel` saves names without the prefix that `BartForConditionalGeneration` adds.
        if any(name.startswith("model.") for name in self.plan.theirs):
            self.prefix = "model."
        else:
            self.prefix = ""
        self.notes: list[str] = []

    def generation(self, name: str) -> Any:
        """Return a generation setting, or None."""
        return self._generation.get(name)

    def drop_setting(self, name: str) -> None:
        """Remove a generation setting that the importer has applied."""
        self._generation.pop(name, None)

    def token(self, *names: str) -> int:
        """Return the id of a special token, from the first of these fields that exists. If it is a list, the first id.

        The fields of config.json are used also if generation settings exist but lack the token.

        Raises:
            CheckpointError: all fields are missing.
        """
        candidates = (fields.get(name) for fields in (self._generation, self.fields) for name in names)
        value = next((value for value in candidates if value is not None), None)
        ids: list[Any] = value if isinstance(value, list) and value else [value]
        if any(type(token) is not int for token in ids):  # not isinstance: JSON's true is an int in Python
            raise CheckpointError(f"{self.file}: {names[0]} must be an id, not {value!r:.80}")
        return int(ids[0])

    def forced_start(self, vocabulary: int = LARGEST) -> tuple[int, ...]:
        """Return the id that every output is forced to begin with, as a tuple; empty if there is none.

        Raises:
            CheckpointError: the setting is not one id of the vocabulary.
        """
        value = self.generation("forced_bos_token_id")
        # BART's old name for it. `generate` reads it only from config.json.
        bos = self.generation("bos_token_id")
        if self._generated_from_config and self.generation("force_bos_token_to_be_generated") and bos is not None:
            value = bos
        if isinstance(value, list):
            ids = value
        else:
            ids = [] if value is None else [value]
        if len(ids) > 1 or any(type(token) is not int or not 0 <= token < vocabulary for token in ids):
            raise CheckpointError(
                f"{self.generation_file}: forced_bos_token_id must be one id below {vocabulary}, not {value!r:.80}"
            )
        return tuple(ids)

    def config_of(self, **fields: Any) -> Config:
        """Return our config with `fields` and the special ids. The decoder start is that of `generate`.

        Raises:
            CheckpointError: an id is missing, or our model does not support a value.
        """
        return super().config(
            eos_id=self.token("eos_token_id"),
            pad_id=self.token("pad_token_id"),
            bos_id=self.token("decoder_start_token_id", "bos_token_id"),
            **fields,
        )

    def config(self, **fields: Any) -> Config:
        """Return our config from the fields that all BART relatives share, and `fields`.

        Raises:
            CheckpointError: a field is missing, or our model does not support a value.
        """
        heads, decoder_heads = (self.get(f"{side}_attention_heads", kind=int) for side in ("encoder", "decoder"))
        ffn, decoder_ffn = (self.get(f"{side}_ffn_dim", kind=int) for side in ("encoder", "decoder"))
        if "hidden_size" in self.fields and "d_model" not in self.fields:
            width = "hidden_size"
        else:
            width = "d_model"
        common_fields = dict(
            d_model=self.get(width, kind=int),
            heads=heads,
            decoder_heads=None if decoder_heads == heads else decoder_heads,
            ffn=ffn,
            decoder_ffn=None if decoder_ffn == ffn else decoder_ffn,
            encoder_layers=self.get("encoder_layers", kind=int),
            decoder_layers=self.get("decoder_layers", kind=int),
            activation=self.activation("activation_function", ACTIVATIONS),
            scale_embedding=self.get("scale_embedding", False, bool),
            dropout=self.rate("dropout", 0.1),
            attention_dropout=self.rate("attention_dropout", 0.0),
            activation_dropout=self.rate("activation_dropout", 0.0),
            positions="learned",
            max_positions=self.get("max_position_embeddings", kind=int),
        )
        return self.config_of(**{**common_fields, **fields})

    def rate(self, name: str, default: float) -> float:
        """Return a dropout rate. It matters only for further training, so an invalid one is replaced by the default."""
        value = self.fields.get(name, default)
        if isinstance(value, int | float) and 0 <= value < 1:
            return float(value)
        return default

    def layers(self, config: Config) -> None:
        """Map all layers."""
        map_layers(self.plan, config, FAIRSEQ, self.prefix)

    def embeddings(self, *, shared: bool = True, stacks: tuple[str, str] | None = None) -> dict[str, Any]:
        """Map both embeddings and the projection, from any of the copies of tied tables that the files contain.

        Args:
            shared: whether the config specifies one embedding for source and target.
            stacks: names of the two stacks; None for BART's names.

        Returns:
            fields of our config: vocabulary sizes and ties.

        Raises:
            CheckpointError: a table is missing or its size differs from the config, tied tables differ, or a banned
                id is not in the vocabulary.
        """
        plan = self.plan
        common = f"{self.prefix}shared.weight"
        head = "lm_head.weight"
        sides = [
            f"{stack}.embed_tokens.weight" for stack in stacks or (f"{self.prefix}encoder", f"{self.prefix}decoder")
        ]
        source, target = (side if plan.has(side) else common for side in sides)
        tied = self.get("tie_word_embeddings", True, bool) and not self._untied
        projection = head if plan.has(head) else target
        if not tied and projection != head:
            raise CheckpointError(f"{plan.source} lacks {head}, although {self.file} sets tie_word_embeddings = false")
        if not tied and common not in (source, target):
            plan.ignore(common)  # saved but unused: transformers 5 unties either all tables or none
        for names in ((common, *sides) if shared and tied else (), (target, head) if tied else ()):
            if not plan.same(*names):
                present = " and ".join(name for name in names if plan.has(name))
                raise CheckpointError(f"{plan.source}: {present} differ, although {self.file} ties them")
        fields = plan.embeddings(source, target, projection)
        vocabulary = self.get("vocab_size", kind=int)
        self.check_rows(source, fields["source_vocabulary"], "vocab_size", vocabulary)
        if not shared:
            vocabulary = self.optional("decoder_vocab_size", int) or vocabulary
            self.check_rows(target, fields["target_vocabulary"], "decoder_vocab_size", vocabulary)
        return {**fields, "projection_bias": self.projection_bias(vocabulary)}

    def check_rows(self, table: str, rows: int, field: str, expected: int) -> None:
        """Check that a table has the number of rows that config.json specifies.

        Raises:
            CheckpointError: it does not.
        """
        if rows != expected:
            raise CheckpointError(
                f"{self.plan.source}: {table} has {rows} rows, but {self.file} sets {field} = {expected}"
            )

    def projection_bias(self, vocabulary: int) -> bool:
        """Map final_logits_bias, combined with banned ids, and return whether the projection needs a bias.

        Raises:
            CheckpointError: its shape does not match the vocabulary, or a banned id is not in the vocabulary.
        """
        plan = self.plan
        name = "final_logits_bias"
        bias = torch.zeros(vocabulary)
        if plan.has(name):
            stored = plan.stored(name)
            if stored.shape[-1] != vocabulary or stored.shape != (*(1,) * (len(stored.shape) - 1), vocabulary):
                raise CheckpointError(f"{plan.source}: {name} has shape {stored.shape}, not (1, {vocabulary})")
            bias = stored.whole().detach().float().reshape(vocabulary).clone()
        banned = self._banned()
        for token in banned:
            if not 0 <= token < vocabulary:
                raise CheckpointError(
                    f"{self.generation_file} bans the id {token}, outside the vocabulary of {vocabulary}"
                )
            bias[token] = BANNED
        if banned:
            ids = ", ".join(map(str, banned))
            self.notes.append(f"banned ids, by the model's generation settings: {ids}")
        if not bool(bias.any()):
            return False
        plan.put("projection.bias", bias, name)
        return True

    def _banned(self) -> list[int]:
        words = word_lists(self.generation("bad_words_ids"), "bad_words_ids", self.generation_file)
        suppressed = id_list(self.generation("suppress_tokens"), "suppress_tokens", self.generation_file)
        return sorted({*(word[0] for word in words if len(word) == 1), *suppressed})

    def generation_settings(self, vocabulary: int, *, banned: bool = True) -> Generation:
        """Return the settings of `generate` in the form of a bundle, and add notes about them for the user.

        Args:
            vocabulary: size of the target vocabulary.
            banned: whether the bias of the projection bans ids, see `projection_bias`. Otherwise the search bans them,
                which does not change the probabilities of other ids.

        Raises:
            CheckpointError: a setting has the wrong type, or an id outside the target vocabulary.
        """
        file = self.generation_file
        ids = set(self._banned()) if banned else set()
        generation = generation_settings(self.generation, tuple(self._ends()[1:]), ids, file)
        check_vocabulary(generation, vocabulary, file)
        self.notes += generation_notes(generation)
        return generation

    def _ends(self) -> list[int]:
        value = self.generation("eos_token_id")
        if isinstance(value, list):
            return list(id_list(value, "eos_token_id", self.generation_file))
        return [value]


def _with_decoder(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of config.json that `generate` reads. Fields of a nested decoder config are used if missing."""
    nested: Any = next((fields[name] for name in ("decoder", "generator", "text_config") if fields.get(name)), {})
    if not isinstance(nested, dict):
        return fields
    return {**nested, **{name: value for name, value in fields.items() if value is not None}}
