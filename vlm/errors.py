"""The exceptions a person may see, as one tree.

VLMError                    its message is safe to show: fact, limit, what to do
├── ConfigError             settings or flags that cannot be used
├── PictureError            a picture that cannot be read or is too large
├── PromptError             a question or chat that cannot be encoded
│   └── ContextLengthError  more tokens than the model or the memory holds
├── ModelError              the model cannot be used
│   ├── ModelNotFoundError  no such model here, and it cannot be fetched
│   ├── DownloadError       a download failed or has no room
│   ├── CheckpointError     files are missing, damaged or of another architecture
│   └── MemoryLimitError    the model needs more memory than there is
├── GenerationError         an answer could not be computed
└── BusyError               the queue is full

Stopped is not an error: it ends work that nobody waits for any more.
"""


class VLMError(Exception):
    """Base of every exception whose message is safe to show to a person."""


class ConfigError(VLMError):
    """Settings or flags that cannot be used."""


class PictureError(VLMError):
    """A picture that cannot be read, or is outside the limits."""


class PromptError(VLMError):
    """A question or chat that cannot be encoded."""


class ContextLengthError(PromptError):
    """A chat with more tokens than the model or the memory holds."""


class ModelError(VLMError):
    """A model that cannot be used."""


class ModelNotFoundError(ModelError):
    """No such model on this machine, and it cannot be fetched."""


class DownloadError(ModelError):
    """A download that failed or has no room on the disk."""


class CheckpointError(ModelError):
    """Model files that are missing, damaged or of another architecture."""


class MemoryLimitError(ModelError):
    """A model that needs more memory than this machine or container has."""


class GenerationError(VLMError):
    """An answer that could not be computed."""


class BusyError(VLMError):
    """A queue that has no place left."""


class Stopped(Exception):
    """Raised inside the model's thread to end work that was stopped."""
