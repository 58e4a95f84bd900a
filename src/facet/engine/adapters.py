"""The adapters of an engine by name: loads them, unloads them, and says what each one changes."""

import contextlib
from collections.abc import Callable, Collection
from dataclasses import replace

from facet.adapter import AdapterInfo, AdapterSource, PlacedAdapter, check_adapter_name
from facet.config import EngineConfig
from facet.errors import CapacityError, CheckpointError, ConfigError, RequestError, UserError
from facet.model.adapters import AdapterBank, AdapterFile, AdapterRoom, find_adapter, read_adapter_file
from facet.model.hub import AS_USUAL
from facet.model_spec import ModelSpec

Tell = Callable[[int, AdapterSource], None]  # that an adapter is to be loaded under a number

TOO_SMALL = "it changes the logits of a probe by less than they are rounded to"
UNTRAINED = "it changes nothing: one of the two matrices of each pair is zero, as before training"


class Adapters:
    """Requests name an adapter; where it lies, a `PlacedAdapter` says from then on. So a name may be given anew while
    requests with the adapter it meant before are still running."""

    def __init__(self, bank: AdapterBank, shift_of: Callable[[int], float]) -> None:
        """`shift_of`: by how much the adapter of a number changes logits. All ranks ask together."""
        self._bank = bank
        self._shift_of = shift_of
        self._tell_others: Tell | None = None
        self._numbers: dict[str, int] = {}
        self._infos: dict[str, AdapterInfo] = {}
        for number, file in bank.placed.items():
            if not bank.all_ranks_have(file.key):
                raise CheckpointError(f"Ranks have read different files of the adapter {file.source.name}.")
            self._enter(file, number, self._checked_shift(number, file))

    def lead(self, tell: Tell) -> None:
        """Lets other ranks hear of every adapter, which they load as well (`load_as_told`)."""
        self._tell_others = tell

    @property
    def infos(self) -> tuple[AdapterInfo, ...]:
        return tuple(self._infos.values())

    @property
    def num_places(self) -> int:
        return self._bank.room.num_adapters

    def lines(self) -> list[str]:
        """What to tell people of those that are loaded."""
        return [f"Adapter {info.name}: {info.line}." for info in self.infos]

    def place_of(self, name: str) -> PlacedAdapter:
        if name not in self._numbers:
            raise unknown_adapter(name, self._numbers)
        return self._bank.place_of(self._numbers[name])

    def load(self, source: AdapterSource, spec: ModelSpec, used: Collection[int]) -> None:
        """`used`: numbers of adapters that requests have. What is replaced stays where nothing comes of it, unless it
        had the last place."""
        check_adapter_name(source.name)
        before = self._numbers.get(source.name)
        if before is not None and not source.replaces:
            raise ConfigError(f"The adapter {source.name} is loaded already. Unload it first, or use another name.")
        file = _read(source, spec)
        self._bank.room.check(file)
        number = self._free_number(source.name, used)
        if number == before:
            self.unload(source.name)
        if self._tell_others is not None:
            self._tell_others(number, source)
        self._enter(file, number, self._put(number, file))

    def load_as_told(self, number: int, source: AdapterSource, spec: ModelSpec) -> None:
        """Loads what the leading rank loads. That rank tells why, where it comes to nothing."""
        found: AdapterFile | UserError
        try:
            found = _read(source, spec)
        except UserError as error:
            found = error
        with contextlib.suppress(UserError):
            self._put(number, found)

    def unload(self, name: str) -> None:
        if name not in self._numbers:
            raise unknown_adapter(name, self._numbers)
        del self._numbers[name], self._infos[name]

    def load_again(self, spec: ModelSpec) -> None:
        """Reads all of them anew, as their files are now, after their memory was given back. Raises for those that are
        lost, which are unloaded."""
        lost = []
        for name, number in list(self._numbers.items()):
            source = self._bank.placed[number].source
            self.unload(name)
            try:
                file = _read(source, spec)
                self._enter(file, number, self._put(number, file))
            except UserError as error:
                lost.append(f"{name} ({error})")
        if lost:
            raise CheckpointError(f"The model is awake, but without adapters that could not be read: {'; '.join(lost)}")

    def _put(self, number: int, file: AdapterFile | UserError) -> float:
        """Puts an adapter where it belongs, on all ranks or on none. Returns by how much it changes logits."""
        error = file if isinstance(file, UserError) else None
        if not isinstance(file, UserError):
            try:
                self._bank.put(number, file)
            except (UserError, OSError) as failure:
                error = CheckpointError(str(failure))
        key = file.key if error is None and not isinstance(file, UserError) else None
        if not self._bank.all_ranks_have(key):
            self._bank.remove(number)
            raise error or CheckpointError("Other ranks could not read the adapter, or have read another one.")
        assert not isinstance(file, UserError), "who has it has read it"
        return self._checked_shift(number, file)

    def _checked_shift(self, number: int, file: AdapterFile) -> float:
        shift = self._shift_of(number)
        if not shift < float("inf"):
            self._bank.remove(number)
            raise CheckpointError(
                f"The adapter {file.source.name} ({file.source.path}) makes logits that are not finite. Was it trained "
                "for this model, and to its end?"
            )
        return shift

    def _enter(self, file: AdapterFile, number: int, shift: float) -> None:
        self._numbers[file.source.name] = number
        self._infos[file.source.name] = AdapterInfo(
            file.source.name, file.source.path, receipt(file, shift, has_effect=self._bank.has_effect(number))
        )

    def _free_number(self, name: str, used: Collection[int]) -> int:
        """A place that nothing is lost with; else that of the adapter which has the name, unless requests have it."""
        taken, most = set(self._numbers.values()), self._bank.room.num_adapters
        own = self._numbers.get(name)
        for number in range(1, most + 1):
            if number not in used and (number not in taken or (number == own and len(taken | set(used)) >= most)):
                return number
        leaving = most - len(taken)
        raise CapacityError(
            f"There is no room for the adapter {name}: there is room for {most}, and all of it is taken"
            + (f" (in {leaving} places, requests with adapters that were unloaded are still running)" * bool(leaving))
            + ". Unload one, or start with a larger --max-loras."
        )


def receipt(file: AdapterFile, shift: float, *, has_effect: bool) -> str:
    """What an adapter changes, for people: proof that it is applied."""
    effect = f"logits of a probe change by {shift:.2g} of their size" if shift > 0 else TOO_SMALL
    return f"{file.line}; {effect if has_effect else UNTRAINED}"


def _read(source: AdapterSource, spec: ModelSpec) -> AdapterFile:
    """Whatever is wrong with its files is the adapter's fault, and ends nothing else."""
    try:
        return read_adapter_file(source, find_adapter(source, AS_USUAL), spec)
    except UserError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"The adapter {source.name} ({source.path}) cannot be read: {type(error).__name__}: {error}."
        ) from error


def unknown_adapter(name: str, known: Collection[str]) -> RequestError:
    return RequestError(
        f"There is no adapter {name[:300]!r} here. "
        + (f"There are {', '.join(known)}." if known else "There are none."),
        field="model",
    )


def without_adapters(config: EngineConfig, room: AdapterRoom) -> EngineConfig:
    """A config that makes the same room and leaves it empty."""
    return replace(
        config,
        enable_lora=True,
        lora_modules=(),
        max_loras=room.num_adapters,
        max_lora_rank=room.rank,
        lora_target_modules=room.endings,
    )
