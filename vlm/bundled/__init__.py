"""The small built-in model: its pictures, its training, its checkpoint folder."""

from vlm.model_source import BUNDLED_FOLDER

__all__ = ["BUNDLED_FOLDER"]
