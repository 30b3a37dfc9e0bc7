"""Buckets, which are the sizes that TensorRT engines are tuned for, and their optimization profiles."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Range, Tensor, added
from txport.runtime.engines.build_record import Profile
from txport.runtime.engines.tensorrt import TensorRt
from txport.runtime.errors import BundleError, InputError

# Shortest default cache. Longer ones are powers of two: a step at the end of a bucket costs little more than one in its
# middle, and each profile costs build time.
_SHORTEST_TARGET = 32
_BATCHES = (1, 8, 32, 64, 128, 256)
# With few multiprocessors, as on a Jetson or a small MIG slice, each profile takes minutes to build, and large batches
# are hardly faster.
_MULTIPROCESSORS = 20
_SMALL_BATCH = 8


@dataclass(frozen=True)
class Buckets:
    """Batch sizes in rows, and cache lengths, ascending. The decoder step has a profile for each pair.

    For each number of `beams`, the step of beam search also has one, for as many sentences as the rows allow.
    """

    batches: tuple[int, ...]
    targets: tuple[int, ...]
    beams: tuple[int, ...] = added(())

    def sentences(self, beams: int) -> tuple[int, ...]:
        """Return the batch sizes of beam search in sentences, ascending."""
        maximum = self.batches[-1] // beams
        return tuple(sorted({min(size, maximum) for size in self.batches}))

    @property
    def profiles(self) -> int:
        """Number of profiles of all engines."""
        beams = sum(len(self.sentences(number)) for number in self.beams) * len(self.targets)
        return len(self.batches) * (1 + len(self.targets)) + beams

    def __str__(self) -> str:
        batches, targets = (", ".join(map(str, sizes)) for sizes in (self.batches, self.targets))
        return f"{self.profiles} profiles (batches of {batches}; caches of {targets})"


def choose_buckets(
    manifest: Manifest,
    max_batch: int | None,
    batches: Sequence[int] | None,
    targets: Sequence[int] | None,
    multiprocessors: int | None = None,
) -> Buckets:
    """Return the given sizes. Default: powers of two for caches, and 1, 8, 32, ... for batches.

    For a GPU with few multiprocessors the defaults are batches of 1 and 8, and two cache lengths.

    Raises:
        InputError: a bucket is not positive, or larger than the bundle's maximum.
    """
    limits = manifest.limits
    small = multiprocessors is not None and multiprocessors < _MULTIPROCESSORS
    if max_batch is not None:
        maximum = max_batch
    elif small and not batches:
        maximum = min(_SMALL_BATCH, limits.batch)
    else:
        maximum = limits.batch
    if not 1 <= maximum <= limits.batch:
        raise InputError(f"the maximum batch {maximum} is not between 1 and {limits.batch}, the bundle's maximum")
    default_sizes = [size for size in _BATCHES if not small or size <= _SMALL_BATCH]
    batch_sizes = batches or [*(size for size in default_sizes if size < maximum), maximum]
    if not targets and small:
        targets = [max(min(_SHORTEST_TARGET, limits.target), limits.target // 4), limits.target]
    elif not targets:
        doubled = [_SHORTEST_TARGET << index for index in range(limits.target.bit_length())]
        targets = [*(size for size in doubled if size < limits.target), limits.target]
    _check("batch", batch_sizes, maximum)
    _check("target", targets, limits.target)
    return Buckets(tuple(sorted(set(batch_sizes))), tuple(sorted(set(targets))))


def choose_beams(
    manifest: Manifest, tensorrt: TensorRt, max_rows: int, requested: Sequence[int] | None
) -> tuple[int, ...]:
    """Return the numbers of beams to build for. Default: that of the model, if bundle, library and batch allow it.

    Args:
        manifest: of the bundle.
        tensorrt: the library.
        max_rows: number of rows of the largest batch.
        requested: numbers of beams from the user; 1 for no beam search.

    Raises:
        BundleError: the bundle does not contain the step of beam search.
        InputError: the library cannot build it, or the largest batch has fewer rows than a sentence has beams.
    """
    has_graph = manifest.optional_graph("decoder_beams") is not None
    if requested is None:
        model_beam = manifest.generation.beam or 1
        if 2 <= model_beam <= max_rows and has_graph and tensorrt.has_cache_layers:
            return (model_beam,)
        return ()
    beam_sizes = tuple(sorted({beams for beams in requested if beams > 1}))
    if beam_sizes and not has_graph:
        raise BundleError("the bundle has no step of beam search: export it again with --with-beams, or omit --beams")
    if beam_sizes and not tensorrt.has_cache_layers:
        raise InputError(f"{tensorrt.library} does not build the step of beam search, 10.15 does: omit --beams")
    _check("beam", requested, max_rows)
    return beam_sizes


def encoder_profiles(manifest: Manifest, buckets: Buckets) -> tuple[Profile, ...]:
    """Return a profile for each batch bucket: batches up to its size, sources of any length."""
    source = manifest.dimensions.source
    return tuple(Profile(Range(1, batch, batch), Range(1, source.opt, source.max), None) for batch in buckets.batches)


def step_profiles(manifest: Manifest, batches: Sequence[int], targets: Sequence[int]) -> tuple[Profile, ...]:
    """Return a profile for each pair, with exactly these rows and this cache length, as the runtime allocates them."""
    source = manifest.dimensions.source
    return tuple(
        Profile(_exactly(batch), Range(1, source.opt, source.max), _exactly(target))
        for target in targets
        for batch in batches
    )


def beam_profiles(manifest: Manifest, buckets: Buckets, beams: int, target: int) -> tuple[Profile, ...]:
    """Return a profile for each number of sentences, with exactly these beams and this cache length."""
    profiles = step_profiles(manifest, buckets.sentences(beams), [target])
    return tuple(replace(profile, beams=beams) for profile in profiles)


def fixed_sizes(profile: Profile, target: int | None) -> dict[str, int]:
    """Return dimensions that are static in an engine's graph: the cache length, if it is fixed, and beams."""
    if target is None:
        return {}
    if profile.beams is None:
        return {"target": target}
    return {"beam": profile.beams, "slots": profile.beams * target}


def shapes(tensor: Tensor, profile: Profile) -> tuple[list[int], list[int], list[int]]:
    """Return the minimum, optimal and maximum shape of an input in a profile."""
    sizes = {"batch": profile.batch, "source": profile.source, "target": profile.target}
    if profile.beams is not None and profile.target is not None:
        sizes |= {name: _exactly(size) for name, size in fixed_sizes(profile, profile.target.max).items()}

    def shape_for(bound: str) -> list[int]:
        return [dim if isinstance(dim, int) else getattr(sizes[dim], bound) for dim in tensor.shape]

    return shape_for("min"), shape_for("opt"), shape_for("max")


def _exactly(size: int) -> Range:
    return Range(size, size, size)


def _check(name: str, sizes: Sequence[int], maximum: int) -> None:
    for size in sizes:
        if not 1 <= size <= maximum:
            raise InputError(f"the {name} bucket {size} is not between 1 and {maximum}")
