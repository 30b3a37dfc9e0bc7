"""Buckets: the sizes that TensorRT engines are tuned for, and the optimization profiles made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from txport.runtime.bundle.manifest import Manifest
from txport.runtime.bundle.schema import Range, Tensor
from txport.runtime.engines.build_record import Profile
from txport.runtime.errors import InputError

# The shortest default cache and the factors between defaults: a step at a bucket's end costs little more than one at
# its middle, and each profile costs build time.
_SHORTEST_TARGET = 32
_BATCHES = (1, 8, 32, 64, 128, 256)


@dataclass(frozen=True)
class Buckets:
    """Rows of a batch and lengths of caches, ascending; each pair gets a profile of the decoder step."""

    batches: tuple[int, ...]
    targets: tuple[int, ...]


def choose_buckets(
    manifest: Manifest, max_batch: int | None, batches: Sequence[int] | None, targets: Sequence[int] | None
) -> Buckets:
    """The sizes in the arguments; by default powers of two for caches and 1, 8, 32 ... for batches.

    Raises:
        InputError: a bucket is larger than the bundle's graphs take, or not positive.
    """
    limits = manifest.limits
    most = limits.batch if max_batch is None else max_batch
    if not 1 <= most <= limits.batch:
        raise InputError(f"the maximum batch {most} is not between 1 and {limits.batch}, the bundle's maximum")
    chosen = batches or [*(size for size in _BATCHES if size < most), most]
    if not targets:
        doubled = [_SHORTEST_TARGET << index for index in range(limits.target.bit_length())]
        targets = [*(size for size in doubled if size < limits.target), limits.target]
    _check("batch", chosen, most)
    _check("target", targets, limits.target)
    return Buckets(tuple(sorted(set(chosen))), tuple(sorted(set(targets))))


def encoder_profiles(manifest: Manifest, buckets: Buckets) -> tuple[Profile, ...]:
    """One for each batch bucket: any batch up to it, sources of any length."""
    source = manifest.dimensions.source
    return tuple(Profile(Range(1, batch, batch), Range(1, source.opt, source.max), None) for batch in buckets.batches)


def step_profiles(manifest: Manifest, batches: Sequence[int], targets: Sequence[int]) -> tuple[Profile, ...]:
    """One for each pair, with exactly these rows and this cache length, as the runtime allocates them."""
    source = manifest.dimensions.source
    return tuple(
        Profile(_exactly(batch), Range(1, source.opt, source.max), _exactly(target))
        for target in targets
        for batch in batches
    )


def shapes(tensor: Tensor, profile: Profile) -> tuple[list[int], list[int], list[int]]:
    """The smallest, the optimal and the largest shape of an input in a profile."""
    sizes = {"batch": profile.batch, "source": profile.source, "target": profile.target}

    def at(which: str) -> list[int]:
        return [dim if isinstance(dim, int) else getattr(sizes[dim], which) for dim in tensor.shape]

    return at("min"), at("opt"), at("max")


def _exactly(size: int) -> Range:
    return Range(size, size, size)


def _check(name: str, sizes: Sequence[int], most: int) -> None:
    for size in sizes:
        if not 1 <= size <= most:
            raise InputError(f"the {name} bucket {size} is not between 1 and {most}")
