"""Training step for Lightning: teacher forcing, label smoothing, Adam, and validation by decoding."""

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import LightningModule
from torch import Tensor
from txport.models.attention_maps import recorded_weights
from txport.models.config import BANNED
from txport.models.embeddings import Embedding
from txport.models.padding import padding_left_out
from txport.models.transformer import Transformer
from txport.runtime.text.tokenizer import Tokenizer
from txport.training.corpora import Pair
from txport.training.examples import TrainingBatch
from txport.training.guidance.guided_attention import average_of_heads, cross_attentions, guided_loss
from txport.training.loss import logits_at, smoothed_cross_entropy
from txport.training.options import TrainingOptions
from txport.training.quality.evaluation import Scores, score
from txport.training.recipe import require_fitted
from txport.training.run.clock import Clock
from txport.training.run.decoding import Watch, decode
from txport.training.run.schedule import SCHEDULES, cooldown
from txport.training.run.sharding import Sharded, whole_weights
from txport.training.scheduled_sampling import Schedule, mixed_inputs
from txport.training.torch_engine import TorchEngine


class TranslationModule(LightningModule):
    """Model in training.

    Args:
        model: the model.
        options: the recipe's `[training]`.
        tokenizer: for validation by decoding.
        validation: pairs to decode in each validation.
        clock: of the run.
        watch: called with the number of sentences that this device has decoded.
    """

    def __init__(
        self,
        model: Transformer,
        options: TrainingOptions,
        tokenizer: Tokenizer,
        validation: Sequence[Pair],
        clock: Clock,
        watch: Watch,
    ) -> None:
        super().__init__()
        self.model = model
        self.scores: Scores | None = None  # results of the last validation
        self.example = ("", "")  # the first validation sentence and its translation
        self.options = options
        self.tokenizer = tokenizer
        self.validation = validation
        self.clock = clock
        self._watch = watch
        self._validation_start = 0.0
        # As in other toolkits, padding gets no gradient. Models from Marian start decoding with the padding id, whose
        # embedding must therefore stay 0.
        for embedding in (layer for layer in model.inputs if isinstance(layer, Embedding)):
            embedding.tokens.padding_idx = model.config.pad_id
        self._sampling = Schedule(
            options.scheduled_sampling, options.sampling_start, options.sampling_least, options.sampling_steps or 1.0
        )

    def progress(self) -> float:
        """Completed share of the run, 0 to 1, by steps or time, whichever is larger. Equal on all devices."""
        # Clocks differ between devices, but learning rates must be equal.
        return float(self.trainer.strategy.broadcast(self.own_progress()))

    def own_progress(self) -> float:
        """Return `progress` by the clock of this device, without communication."""
        done = self.global_step / max(1.0, float(self.trainer.estimated_stepping_batches))
        return min(1.0, max(done, self.clock.done()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with the betas and epsilon of Vaswani et al. (2017), section 5.3."""
        # With mixed precision, Lightning refuses to clip gradients if a fused optimizer could unscale them.
        fused = self.options.precision == "32-true"
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return torch.optim.Adam(trained, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=fused)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip gradients by their norm. Lightning does not support this for shards."""
        if isinstance(self.trainer.strategy, Sharded):
            self.trainer.strategy.clip(self.options.clip_norm)
        else:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_train_batch_start(self, batch: TrainingBatch, batch_idx: int) -> None:
        """Set the learning rate, and seed dropout by epoch, batch and process, so that a resumed run repeats it."""
        options = self.options
        step = self.global_step
        progress = self.progress()
        rate = SCHEDULES[options.schedule](
            step + 1, require_fitted(options.learning_rate), require_fitted(options.warmup_steps)
        )
        rate *= cooldown(progress, require_fitted(options.cooldown))
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate
        torch.manual_seed(self._seed(batch_idx))
        self.log("learning_rate", rate)

    def training_step(self, batch: TrainingBatch, batch_idx: int) -> Tensor:
        """Return the mean smoothed cross-entropy of a batch, in nats per token, plus the loss of guided attention."""
        probability = self._sampling.true_token_probability(self.global_step)
        if self._sampling.kind != "none":
            self.log("true_token_probability", probability)
        loss = self.loss(batch, self.options.label_smoothing, probability, self._seed(batch_idx) + 1)
        self.log("training/loss", loss)
        return loss

    def validation_step(self, batch: TrainingBatch, batch_idx: int) -> None:
        """Log the cross-entropy without smoothing, which is comparable between runs."""
        tokens = int((batch.target_ids[:, 1:] != self.model.config.pad_id).sum())
        # Lightning averages the sums of these weights over the devices, and rounds the average down to an integer.
        # Times the number of devices, nothing is lost.
        weight = tokens * self.trainer.world_size
        self.log("validation/loss", self.loss(batch, 0.0), batch_size=weight, sync_dist=True)

    def on_validation_start(self) -> None:
        self._validation_start = time.monotonic()

    def on_validation_epoch_end(self) -> None:
        """Decode with the runtime's search loop, a share of the sentences on each device, and compute scores of all."""
        if self.trainer.sanity_checking:
            return
        started = time.monotonic()
        with whole_weights(self.trainer):
            hypotheses = self._decode([source for source, _ in self.validation])
        now = time.monotonic()
        self.clock.reserve_for(now - self._validation_start, now - started)
        self.scores = score(hypotheses, [target for _, target in self.validation])
        self.example = (self.validation[0][0], hypotheses[0])
        figures = {"exact": self.scores.exact, "bleu": self.scores.bleu, "chrf": self.scores.chrf}
        self.log_dict({f"validation/{name}": value for name, value in figures.items()}, rank_zero_only=False)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["txport_seconds"] = self.clock.seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.clock.before = float(checkpoint["txport_seconds"])

    def _seed(self, batch_idx: int) -> int:
        """Return the seed of one batch in this process: the same again if an interrupted run repeats the batch."""
        return hash((self.options.seed, self.trainer.current_epoch, batch_idx, self.global_rank))

    def loss(
        self, batch: TrainingBatch, smoothing: float, true_token_probability: float = 1.0, seed: int = 0
    ) -> Tensor:
        """Return the mean cross-entropy of a batch, in nats per token, plus the loss of guided attention.

        Args:
            batch: of any size.
            smoothing: see `smoothed_cross_entropy`.
            true_token_probability, seed: see `mixed_inputs`.
        """
        config = self.model.config
        # Lengths are computed from the labels, since inputs may contain padding ids: Marian's decoder starts with one.
        is_target = batch.target_ids[:, 1:] != config.pad_id
        target_lengths = is_target.sum(dim=1)
        with (
            padding_left_out(self.model, batch.source_lengths, target_lengths),
            recorded_weights(cross_attentions(self.model) if batch.guide is not None else ()) as weights,
        ):
            memory = self.model.encode(batch.source_ids, batch.source_lengths)
            decoder_inputs = mixed_inputs(
                self.model,
                batch.target_ids[:, :-1],
                memory,
                batch.source_lengths,
                true_token_probability,
                seed,
                batch.source_ids,
            )
            logits = logits_at(is_target, self.model, decoder_inputs, memory, batch.source_lengths, batch.source_ids)
        # The bias of the projection bans ids: their logits are very low at every position, so one position shows them.
        if config.projection_bias:
            banned = logits[0].detach() < BANNED / 2
        else:
            banned = None
        loss = smoothed_cross_entropy(logits, batch.target_ids[:, 1:][is_target], smoothing, banned)
        if batch.guide is None:
            return loss
        tokens = is_target.sum()
        attention = average_of_heads(self.model, weights)
        guided = guided_loss(self.options.guided_attention, attention, batch.guide, tokens)
        self.log("training/guided_attention", guided)
        return loss + self.options.guided_weight * guided

    def _decode(self, sources: Sequence[str]) -> list[str]:
        rank = self.global_rank
        world = self.trainer.world_size
        engine = TorchEngine(self.model, target=self.options.max_length)
        mine = decode(engine, self.tokenizer, sources[rank::world], self._watch)
        if world == 1:
            return mine
        shares: list[list[str]] = [[] for _ in range(world)]
        torch.distributed.all_gather_object(shares, mine)
        return [shares[number % world][number // world] for number in range(len(sources))]
