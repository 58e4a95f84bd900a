"""Wire types of /v1/load_lora_adapter and /v1/unload_lora_adapter. They are vLLM's."""

import msgspec


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False  # in the place of the adapter that has the name


class UnloadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: str = ""
