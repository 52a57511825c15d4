"""What the page and the engine say to each other: requests, streamed pieces, states.

Nothing here computes. The page, the commands and the tests know the engine only
through `ChatEngine`, so a fake can stand at this one seam.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from vlm.images import Picture
from vlm.picture_size import PictureGeometry

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "cancelled", "loop"]
Stage = Literal["queued", "loading", "vision", "prefill", "decode", "done"]
ModelStage = Literal["finding", "downloading", "loading", "ready", "failed", "closed"]


@dataclass(frozen=True)
class Message:
    """One turn of a chat; its pictures come before its text, in this order."""

    role: Role
    text: str
    pictures: tuple[Picture, ...] = ()
    token_ids: tuple[int, ...] | None = None
    """Exact ids of an answer this engine generated, so that its cache can be reused."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy."""

    temperature: float = 0.7
    top_p: float = 0.8
    top_k: int = 20
    presence_penalty: float = 1.5
    max_new_tokens: int = 512
    seed: int | None = None


@dataclass(frozen=True)
class AskRequest:
    """One question: the whole chat so far, and how to answer it."""

    conversation_id: str
    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    max_visual_tokens: int = 512
    """Visual tokens each picture may take (image_detail)."""
    may_guess: bool = True
    """Whether several tokens may be guessed and checked at once; the answer is the same."""
    visitor: str = ""
    """Who asks, for fair turns; empty: each conversation is a visitor of its own."""


@dataclass(frozen=True)
class AnswerStats:
    """What one answer cost."""

    prompt_tokens: int
    visual_tokens: int
    cached_tokens: int
    new_tokens: int
    queue_s: float
    vision_s: float
    prefill_s: float
    ttft_s: float
    """From submit to the first token: queue, pictures, vision and prefill included."""
    prefill_tps: float
    decode_tps: float
    """Tokens after the first, over the time they took; 0.0 with fewer than two."""
    finish_reason: FinishReason
    token_ids: tuple[int, ...] = ()
    """Ids of the answer, the stop token not included."""


@dataclass(frozen=True)
class Piece:
    """One streamed piece of an answer, or of the wait for it."""

    stage: Stage
    text: str = ""
    """New text since the piece before; whole characters only."""
    progress: float = 0.0
    """0..1 within the stage (vision, prefill)."""
    queue_position: int = 0
    """Requests ahead of this one while stage is "queued"."""
    notices: tuple[str, ...] = ()
    """Things to tell the person, such as "Only the first frame is used."."""
    stats: AnswerStats | None = None
    """Given once, with stage "done"."""


@dataclass(frozen=True)
class Rates:
    """How fast answers came lately, as measured; None where nothing was measured yet."""

    vision_tps: float | None = None
    """Visual tokens encoded a second."""
    prefill_tps: float | None = None
    """Prompt tokens forwarded a second."""
    decode_tps: float | None = None
    """Tokens written a second, after the first."""
    turn_s: float | None = None
    """Seconds a question at the head of a busy queue waits for its turn."""


@dataclass(frozen=True)
class Capacity:
    """What a loaded model can hold, and what a picture takes of it."""

    context_tokens: int
    """The longest chat, its answer included."""
    kv_token_bytes: int
    """Memory each token of a chat takes."""
    geometry: PictureGeometry


@dataclass(frozen=True)
class ModelState:
    """Where the model is on its way from disk or network to ready."""

    stage: ModelStage
    message: str = ""
    """One sentence for people; for "failed": why, and what to do."""
    done_bytes: int = 0
    total_bytes: int = 0
    eta_s: float | None = None
    model: str = ""
    is_bundled: bool = False
    precision: str = ""
    precision_reason: str = ""
    parameters: int = 0
    """Weights of the loaded model; 0 before it is."""
    server: str = ""
    """Host and port of the server that runs the model; empty: this process does."""
    capacity: Capacity | None = None
    """None until the model is loaded, and where it is not known."""
    notice: str = ""
    """A banner to show while this model is used, or empty."""


@dataclass(frozen=True)
class MemoryReading:
    """What this process and its machine (or container) use, in bytes."""

    rss_bytes: int
    peak_rss_bytes: int
    weights_bytes: int
    kv_cache_bytes: int
    feature_cache_bytes: int
    available_bytes: int
    total_bytes: int
    is_container_limit: bool
    """True when total_bytes is a cgroup limit below the machine's memory."""
    cpu_percent: float
    """Of the usable cores together, 0..100."""
    cores: int
    conversations: int


class Answer(Protocol):
    """A running answer: iterate its pieces, stop it at any time."""

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces until "done"; a piece comes at least every 2 s. Raises VLMError."""

    def stop(self) -> None:
        """End the work within 0.3 s; the stream still yields "done" (cancelled)."""


class ChatEngine(Protocol):
    """The one seam between the model and everything that asks it."""

    def ask(self, request: AskRequest) -> Answer:
        """Queue a question, also while the model is loading. Raises BusyError."""

    def read_ahead(self, request: AskRequest) -> Answer:
        """Read the pictures of a chat while nobody waits, so that its question finds them read.

        The pieces tell the progress. The last message's text does not matter. A question in
        the same conversation joins the work; losing hold of the answer ends it.
        """

    def state(self) -> ModelState:
        """Say where the model is; never blocks."""

    def memory(self) -> MemoryReading:
        """Read memory and CPU use; never blocks on the model."""

    def rates(self) -> Rates:
        """Say how fast answers came lately; never blocks."""

    def forget(self, conversation_id: str) -> None:
        """Stop and drop all that is kept for a conversation."""

    def free_caches(self) -> int:
        """Drop all caches that no running answer holds; return their bytes.

        Costs only time: what is needed again is computed again, to the same answer.
        """

    def retry_load(self) -> None:
        """Try to load the model again after it failed."""

    def close(self) -> None:
        """Stop all work and end the owner thread."""
