"""Fine-tuning: model, tokenizer and languages of a checkpoint for another corpus, and frozen parameters."""

import json
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txport.models.config import PRESETS, Config
from txport.models.description import FORMAT_VERSION, ConfigFile, read_config_file, read_tokenizer, write_description
from txport.runtime.bundle.schema import Generation
from txport.runtime.bundle.strict_json import encode
from txport.runtime.bundle.tokenizer_schema import TokenizerDescription
from txport.runtime.errors import InputError, nearest
from txport.runtime.files import new_directory, write_atomically
from txport.runtime.text.tokenizer import IdsOnly, TextTokenizer, open_tokenizer
from txport.training.corpora import Pair
from txport.training.guidance.heads import default_heads
from txport.training.options import TokenizerOptions
from txport.training.recipe import Recipe

if TYPE_CHECKING:
    from txport.models.transformer import Transformer

# Maximum share of unknown pieces on one side of a corpus, and approximate number of pairs that are checked.
MAX_UNKNOWN = 0.05
LOOKED_AT = 5_000


@dataclass(frozen=True)
class Start:
    """The checkpoint that a run fine-tunes.

    Attributes:
        directory: the checkpoint, or the run with copies of its config and tokenizer.
        config: the model, with the recipe's dropout.
        description: the tokenizer. Its default languages are those of the corpus, if it has languages of these names.
        generation: search settings of an imported checkpoint.
    """

    directory: Path
    config: Config
    description: TokenizerDescription
    generation: Generation

    @classmethod
    def read(cls, recipe: Recipe, directory: Path) -> "Start":
        """Read a checkpoint for fine-tuning with a recipe.

        Raises:
            CheckpointError: it is damaged.
            InputError: it has no tokenizer, or does not match [model].
        """
        file = read_config_file(directory)
        config = file.config
        description = read_tokenizer(directory, config)
        if description.kind == "none":
            raise InputError(f"{directory} has no tokenizer: import it with one, since a corpus is text")
        _check_model(recipe.model, config, directory)
        return cls(directory, _with_recipe(recipe, config), _in_languages(description, recipe.corpus), file.generation)

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the checkpoint's model and tokenizer instead of those of the recipe."""
        config = self.config
        names = [field.name for field in fields(Config) if not field.name.endswith(("_vocabulary", "_id"))]
        model = {"preset": "base", **{name: encode(getattr(config, name)) for name in names}}
        joint = config.share_embeddings or config.copies
        tokenizer = TokenizerOptions(vocabulary=max(16, config.target_vocabulary), joint=joint)
        return replace(recipe, model=model, tokenizer=tokenizer)

    def tokenizer(self) -> TextTokenizer:
        """Return the tokenizer, ready for encoding."""
        tokenizer = open_tokenizer(self.directory, self.description, self.config.vocabularies)
        assert not isinstance(tokenizer, IdsOnly)
        return tokenizer

    def keep(self, run: Path) -> None:
        """Copy the files for `read` to the directory of a run: a resumed run does not read the checkpoint again."""
        config = json.dumps(encode(ConfigFile(FORMAT_VERSION, self.config, self.generation)), indent=1)
        write_atomically(run / "config.json", f"{config}\n".encode())
        with new_directory(run / "tokenizer") as temporary:
            shutil.copytree(self.directory / "tokenizer", temporary, dirs_exist_ok=True)
            if self.description != read_tokenizer(self.directory, self.config):
                write_description(temporary, self.description)


def check_fit(tokenizer: TextTokenizer, unk: int, pairs: Collection[Pair], checkpoint: Path) -> None:
    """Check that a tokenizer fits a corpus.

    Args:
        tokenizer: of the checkpoint.
        unk: id of unknown pieces.
        pairs: the corpus; only some pairs are checked.
        checkpoint: path for messages.

    Raises:
        InputError: too many pieces on one side are unknown, or the checkpoint does not have a necessary language.
    """
    sample = list(islice(pairs, 0, None, max(1, len(pairs) // LOOKED_AT)))
    for side in (0, 1):
        name = ("source", "target")[side]
        encode_side = (lambda text: tokenizer.encode_source(text)[0], tokenizer.encode_prefix)[side]
        ids = [token for pair in sample for token in encode_side(pair[side])]
        share = ids.count(unk) / max(1, len(ids))
        if share > MAX_UNKNOWN:
            raise InputError(
                f"the tokenizer of {checkpoint} lacks {100 * share:.0f}% of the pieces of the corpus' {name} "
                f"texts, for example in {_example(sample, side, unk, encode_side)!r}: fine-tune a checkpoint of these "
                "languages, swap source and target if they are reversed, or train a new model without --from"
            )


def _example(pairs: Sequence[Pair], side: int, unk: int, encode_side: Any) -> str:
    return next(pair[side] for pair in pairs if unk in encode_side(pair[side]))[:60]


def freeze(model: "Transformer", patterns: Sequence[str]) -> None:
    """Freeze parameters by name.

    Args:
        model: model to train.
        patterns: names of parameters or of modules that contain them, with * ? [ ] as in file names. A tensor that two
            modules share is frozen if either matches.

    Raises:
        InputError: a pattern matches no name, or no parameter is left to train.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matches = [name for name in parameters if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")]
        if not matches:
            modules = [name for name, _ in model.named_modules() if name and name.count(".") < 2]
            raise InputError(f"training.freeze: {pattern!r} fits no parameter: {nearest(pattern, modules)}")
        for name in matches:
            parameters[name].requires_grad = False
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InputError("training.freeze leaves nothing to train: freeze less")


def check_positions(recipe: Recipe, config: Config) -> None:
    """Refuse a maximum length of pairs that is larger than the model's number of positions."""
    if recipe.training.max_length > config.max_positions:
        raise InputError(
            f"training.max_length ({recipe.training.max_length}) is above model.max_positions ({config.max_positions})"
        )


def _check_model(model: dict[str, Any], config: Config, directory: Path) -> None:
    """Check that the model matches the recipe."""
    recipe_values = {**PRESETS.get(model.get("preset", ""), {}), **model}
    for name, value in recipe_values.items():
        actual = encode(getattr(config, name, None))
        if not name.endswith(("preset", "dropout", "alignment_heads")) and value != actual:
            raise InputError(
                f"the recipe's model.{name} is {value}, but {directory} has {actual}: a checkpoint "
                "decides the model, leave [model] out except for dropout and alignment_heads"
            )


def _with_recipe(recipe: Recipe, config: Config) -> Config:
    """Return the config with the values that a recipe may change: dropout, and alignment heads."""
    dropouts = {name: value for name, value in recipe.model.items() if name.endswith("dropout")}
    heads = tuple((layer, head) for layer, head in recipe.model.get("alignment_heads", ())) or config.alignment_heads
    if recipe.training.guided_attention != "none" and not heads:
        heads = default_heads(config.decoder_layers)
    return replace(config, **dropouts, alignment_heads=heads)


def _in_languages(description: TokenizerDescription, corpus: Any) -> TokenizerDescription:
    """Return the tokenizer with the corpus' languages as defaults, if it has languages of these names."""
    languages = description.languages
    if languages is None:
        return description
    for side in ("source", "target"):
        name = getattr(corpus, f"{side}_language", None)
        if name in languages.of(side)[0]:
            languages = replace(languages, **{f"{side}_default": name})
    return replace(description, languages=languages)
