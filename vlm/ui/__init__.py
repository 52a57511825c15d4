"""The page: what a person sees and presses. The only package that knows Gradio."""

from vlm.ui.quick_import import import_gradio_quickly

import_gradio_quickly()
