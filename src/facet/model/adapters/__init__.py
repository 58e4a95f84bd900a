"""Adapters (LoRA) as PEFT writes them: reads them, checks them against a model, and puts them beside its weights."""

from facet.model.adapters.adapter_file import AdapterFile, find_adapter, read_adapter_file
from facet.model.adapters.bank import AdapterBank, AdapterRoom, plan_room, room_bytes

__all__ = ["AdapterBank", "AdapterFile", "AdapterRoom", "find_adapter", "plan_room", "read_adapter_file", "room_bytes"]
