"""Models of the server: selected by name or languages, loaded on demand, and unloaded when memory is full."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from txport.runtime.bundle.archive import SUFFIX
from txport.runtime.bundle.manifest import WEIGHTS, Manifest
from txport.runtime.bundle.names import find_bundle
from txport.runtime.errors import EngineError, InputError, ResourceError, nearest
from txport.runtime.serve.errors import Refusal
from txport.runtime.serve.languages import sides
from txport.runtime.serve.logs import log
from txport.runtime.translator import Translator

AUTO = "auto"
_LANGUAGES_ADVICE = "see /languages"
# Consecutive failures of an engine after which its bundle is opened again, and after which the process should restart.
REOPEN = 3
GIVE_UP = 6
Open = Callable[[Path], Translator]


@dataclass(eq=False)
class Loaded:
    """An open bundle. After it is retired, its last user closes it."""

    translator: Translator
    users: int = 0
    retired: bool = False


@dataclass(eq=False)
class Model:
    """A model of the server.

    Attributes:
        name: name in requests.
        directory: the bundle, a directory or a file.
        manifest: manifest of the bundle.
        sources, targets: names of languages in the bundle by their codes; None for a bundle without a choice.
        loaded: the open bundle; None while it is not loaded.
        used: time of the last use, by `time.monotonic`.
        loads: how many times it was loaded.
        failures: consecutive failures of its engine.
    """

    name: str
    directory: Path
    manifest: Manifest
    sources: dict[str, str | None]
    targets: dict[str, str | None]
    loaded: Loaded | None = None
    used: float = 0.0
    loads: int = 0
    failures: int = 0

    @classmethod
    def read(cls, argument: str) -> "Model":
        """Return the model of an argument: a bundle's path, or NAME=PATH. A NAME such as en-de sets its languages.

        Raises:
            InputError: there is no such bundle.
            BundleError: it is damaged.
        """
        name, equals, place = argument.partition("=")
        directory = find_bundle(place if equals else argument)
        if not directory.exists():
            raise InputError(f"{directory} does not exist: give a bundle, or NAME=BUNDLE")
        manifest = Manifest.load(directory)
        if not equals:
            name = directory.resolve().name.removesuffix(SUFFIX)
        return cls(name, directory, manifest, *sides(manifest.tokenizer, name))

    @property
    def bytes(self) -> int:
        """Size of its weights, by which memory is counted."""
        return self.manifest.files[WEIGHTS].bytes

    @property
    def aligns(self) -> bool:
        """True if it has the graphs that alignments need."""
        return self.manifest.optional_graph("decoder") is not None


@dataclass(frozen=True)
class ModelChoice:
    """A model, and the languages of a request by the names of its bundle.

    Attributes:
        source: code of the source language, if known.
    """

    model: Model
    source: str | None
    source_language: str | None
    target_language: str | None


@dataclass(eq=False)
class Models:
    """All models of the server.

    Args:
        models: models in the order of loading.
        memory: maximum bytes of loaded weights; None for no limit.
        open: opens a bundle, in a thread.

    Raises:
        InputError: two models have the same name, or one is larger than the memory.
    """

    models: Sequence[Model]
    memory: int | None
    open: Open
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _loads: dict[Model, "asyncio.Task[None]"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        for model in self.models:
            if names.count(model.name) > 1:
                raise InputError(f"two bundles are called {model.name}: give them different names by NAME=BUNDLE")
            if self.memory is not None and model.bytes > self.memory:
                raise InputError(f"{model.name} has {model.bytes:,} bytes of weights, more than --memory allows")

    def choose(self, name: str, source: str, target: str) -> ModelChoice:
        """Return the first model of this name, if one is given, that translates between these languages.

        Args:
            name: of a model, or "" for any.
            source: code of a language, or its name in a bundle; "auto" if only one is possible; "" if there is one
                model.
            target: the same for the target language.

        Raises:
            Refusal: 404 for an unknown name, 400 for languages.
        """
        models = [model for model in self.models if name in ("", model.name)]
        if not models:
            names = [model.name for model in self.models]
            raise Refusal(404, f"there is no model of this name: {nearest(name, names)}")
        if name == "" and len(models) > 1 and not (source and target):
            raise Refusal(400, "source and target are needed: give codes of languages, which /languages lists")
        targets = [(model, code) for model in models for code in _codes(model.targets, target)]
        if not targets:
            unnamed = not any(model.sources or model.targets for model in models)
            if unnamed:
                remedy = "leave out source and target, this bundle has no languages"
            else:
                remedy = _LANGUAGES_ADVICE
            raise Refusal(400, f"the target language is not served: {remedy}")
        pairs = [(model, code, to) for model, to in targets for code in _codes(model.sources, source)]
        if not pairs:
            raise Refusal(400, f"the source language is not served with this target: {_LANGUAGES_ADVICE}")
        if source == AUTO and len({code for _, code, _ in pairs}) > 1:
            raise Refusal(400, "languages are not detected, and there are several: give the source language")
        model, code, to = pairs[0]
        return ModelChoice(model, code or None, model.sources.get(code), model.targets.get(to))

    def route(self, name: str, source: str, target: str) -> list[ModelChoice]:
        """Return the models of a translation: one as of `choose`, otherwise two with a common language.

        The first pair of models in their order translates. Pivots need both languages and no name.

        Raises:
            Refusal: as `choose`.
        """
        try:
            return [self.choose(name, source, target)]
        except Refusal:
            if name or not source or not target or AUTO in (source, target):
                raise
            if pivot := self._pivot(source, target):
                return pivot
            raise

    def _pivot(self, source: str, target: str) -> list[ModelChoice]:
        """Return two models by which a source and a target are connected, or none."""
        for first in self.models:
            for code in _codes(first.sources, source):
                for middle, second in product(first.targets, self.models):
                    ends = _codes(second.targets, target)
                    if ends and middle in second.sources and middle != code:
                        last = second.sources[middle], second.targets[ends[0]]
                        return [
                            ModelChoice(first, code, first.sources[code], first.targets[middle]),
                            ModelChoice(second, middle, *last),
                        ]
        return []

    def pairs(self) -> dict[str, list[str]]:
        """Codes of the target languages for each source language, directly or through a common language."""
        direct: dict[str, set[str]] = {}
        for model in self.models:
            for source in model.sources:
                direct.setdefault(source, set()).update(model.targets)
        targets_by_source = {}
        for source, targets in sorted(direct.items()):
            pivoted = set().union(*(direct.get(middle, set()) for middle in targets if middle != source))
            if targets:
                targets_by_source[source] = sorted(targets | pivoted - {source})
        return targets_by_source

    async def load(self) -> None:
        """Load models until the memory is full. A failure is logged, and the next request tries again."""
        room = self.memory
        for model in self.models:
            if room is not None and model.bytes > room:
                continue
            try:
                async with self.lease(model):
                    if room is not None:
                        room -= model.bytes
            except (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
                raise
            except BaseException as error:  # a library may raise a BaseException
                log("model not loaded", error=error, model=model.name, why=str(error))

    @asynccontextmanager
    async def lease(self, model: Model, seconds: float | None = None) -> AsyncIterator[Translator]:
        """Yield the translator of a model, which stays loaded meanwhile.

        Args:
            model: the model.
            seconds: timeout of loading; None for no limit.

        Raises:
            ResourceError: other models in use leave too little memory.
            asyncio.TimeoutError: it is not loaded in time; loading continues.
        """
        while (loaded := model.loaded) is None:  # it may have been unloaded before this client continues
            await asyncio.wait_for(asyncio.shield(self._load(model)), seconds)
        loaded.users += 1
        try:
            yield loaded.translator
            model.failures = 0
        except EngineError:
            model.failures += 1
            if model.failures % REOPEN == 0 and model.loaded is loaded:
                self._retire(model)
            raise
        finally:
            loaded.users -= 1
            model.used = time.monotonic()
            # Other requests may still translate with a model that failed or had to make room.
            if loaded.retired and not loaded.users:
                await asyncio.to_thread(loaded.translator.close)

    @property
    def alive(self) -> bool:
        """Return whether no engine keeps failing after it was opened again."""
        return all(model.failures < GIVE_UP for model in self.models)

    async def close(self) -> None:
        """Close all."""
        await asyncio.gather(*self._loads.values(), return_exceptions=True)
        for model in self.models:
            if model.loaded is not None:
                await asyncio.to_thread(self._retire(model).translator.close)

    @property
    def ready(self) -> bool:
        """True if there was a model that could be loaded."""
        return any(model.loads for model in self.models)

    def _load(self, model: Model) -> "asyncio.Task[None]":
        """Return the task that loads a model. It continues when waiting requests are cancelled."""
        if model not in self._loads:
            task = asyncio.create_task(self._open(model))
            self._loads[model] = task
            task.add_done_callback(lambda _: self._loads.pop(model))
            # Read the error here: asyncio complains about errors that no waiter of a task has read.
            task.add_done_callback(lambda task_done: task_done.cancelled() or task_done.exception())
        return self._loads[model]

    async def _open(self, model: Model) -> None:
        async with self._loading:
            if model.loaded is None:
                await self._make_room(model)
                start = time.monotonic()
                model.loaded = Loaded(await asyncio.to_thread(self.open, model.directory))
                model.loads += 1
                log("model loaded", model=model.name, seconds=round(time.monotonic() - start, 3))

    async def _make_room(self, model_to_load: Model) -> None:
        """Unload unused models, the least recently used first, until there is room."""
        if self.memory is None:
            return
        while model_to_load.bytes + sum(model.bytes for model in self.models if model.loaded is not None) > self.memory:
            idle = [model for model in self.models if model.loaded is not None and not model.loaded.users]
            if not idle:
                raise ResourceError("all models that are loaded are in use")
            model = min(idle, key=lambda each: each.used)
            await asyncio.to_thread(self._retire(model).translator.close)
            log("model unloaded", model=model.name)

    @staticmethod
    def _retire(model: Model) -> Loaded:
        loaded = model.loaded
        assert loaded is not None
        model.loaded = None
        loaded.retired = True
        return loaded


def _codes(side: dict[str, str | None], requested: str) -> list[str]:
    """Return the codes of a side that match a request; [""] if neither bundle nor client names a language."""
    if requested == AUTO or (requested == "" and len(side) == 1):
        return list(side) or [""]  # a bundle without languages has one choice, which needs no code
    if requested == "":
        return [""]
    exact = [code for code, bundle_name in side.items() if requested in (code, bundle_name)]
    short = requested.replace("_", "-").partition("-")[0].lower()
    return exact or [code for code in side if code.lower() == short]
