"""The small built-in model: its pictures, its training, its checkpoint folder."""

from pathlib import Path

BUNDLED_FOLDER = Path(__file__).parent / "model"
"""The checkpoint that is committed with the code, laid out like a hub snapshot."""
