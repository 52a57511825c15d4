"""Choose the model of a server from its list, and say what people should know of it."""

from __future__ import annotations

from collections.abc import Sequence

from vlm.chat import ModelState
from vlm.errors import ModelError

_MOST_NAMED = 5
ANY_MODEL = "auto"
"""The setting that takes the first model a server lists."""


def ready_state(host: str, wanted: str, names: Sequence[str] | None) -> ModelState:
    """Return the state that a server's list of models leads to: ready, or still finding.

    Args:
        host: the server, as people see it.
        wanted: the model that was asked for, or "auto".
        names: what the server lists; None when it has no list.
    Raises ModelError when no model can be chosen.
    """
    model = wanted
    if wanted == ANY_MODEL:
        if names is None:
            raise ModelError(
                f"{host} does not list its models. Name one with --model, "
                "and check that --base-url is the address of a chat server."
            )
        if not names:
            message = f"{host} has no model ready yet. It is asked again until it has one."
            return ModelState("finding", message, server=host)
        model = names[0]
    elif names:
        model = _full_name(wanted, names)
    notice = (
        f"Remote: {model} at {host}. Questions and pictures are sent there; "
        "the memory panel shows this process only."
    )
    if names and model not in names:
        notice += (
            f" {host} does not list this model, but {_listed(names)}. "
            "If it fails, choose one of those with --model."
        )
    return ModelState("ready", "Ready.", model=model, server=host, notice=notice)


def _full_name(wanted: str, names: Sequence[str]) -> str:
    """Find the name a server has for what people call "Qwen3-VL-2B-Instruct" or "qwen3-vl"."""
    if wanted in names:
        return wanted
    for name in names:
        if wanted in (name.rpartition("/")[2], name.removesuffix(":latest")):
            return name
    return wanted


def _listed(names: Sequence[str]) -> str:
    more = ", …" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
