"""Find what makes a question fit: less detail of its pictures, or fewer messages before it."""

from __future__ import annotations

from dataclasses import replace

from vlm.config import IMAGE_DETAILS
from vlm.ui.conversation import Turn
from vlm.ui.estimate import Cost


def lower_detail(cost: Cost, spare_bytes: int) -> int | None:
    """Return the finest lower level at which a question fits, else the lowest.

    None when no level makes it smaller.
    """
    better = None
    for tokens in sorted(IMAGE_DETAILS.values(), reverse=True):
        lower = Cost(replace(cost.question, max_visual_tokens=tokens), cost.capacity)
        if tokens < cost.question.max_visual_tokens and lower.prompt_tokens < cost.prompt_tokens:
            better = tokens
            if lower.trouble(spare_bytes) is None:
                break
    return better


def turns_to_drop(cost: Cost, spare_bytes: int) -> list[Turn]:
    """Return the turns without which a question fits, or all when it never does.

    Those with pictures go first, because they take most; among them the oldest.
    """
    order = sorted(cost.question.turns, key=lambda turn: not turn.question.pictures)
    dropped: list[Turn] = []
    for turn in order:
        dropped.append(turn)
        kept = tuple(one for one in cost.question.turns if one not in dropped)
        shorter = Cost(replace(cost.question, turns=kept, is_cut=True), cost.capacity)
        if shorter.trouble(spare_bytes) is None:
            break
    return dropped
