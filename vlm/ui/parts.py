"""The parts of the page: where they stand and the words on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from vlm.config import IMAGE_DETAILS, Settings
from vlm.ui.boxes_view import BoxesParts, lay_out_boxes
from vlm.ui.history_view import HistoryParts, lay_out_history
from vlm.ui.look import WHILE_VISIBLE_JS
from vlm.ui.options import (
    LONGEST_SYSTEM_PROMPT,
    PRESENCE_PENALTY,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    new_tokens_range,
)
from vlm.ui.part_of_picture import PartView, lay_out_part_view
from vlm.ui.tasks import TASK_PRESETS, preset_order
from vlm.ui.texts import EN, Texts
from vlm.ui.upkeep import effect_html
from vlm.ui.written import lay_out_written

SAMPLING_NAMES = (
    "temperature", "top_p", "top_k", "presence_penalty", "max_new_tokens", "seed",
)  # fmt: skip
PICTURE_TYPES = ["image", ".heic", ".heif", ".avif"]
LATEX: list[dict[str, str | bool]] = [
    {"left": "$$", "right": "$$", "display": True},
    {"left": "\\[", "right": "\\]", "display": True},
    {"left": "\\(", "right": "\\)", "display": False},
]


@dataclass
class Parts:
    """The components of the page."""

    header: gr.HTML
    retry_load: gr.Button
    language: gr.Button
    shown_language: gr.Textbox
    """Invisible; tells the browser the language of the page."""
    chat: gr.Chatbot
    boxes: BoxesParts
    part: gr.Button
    part_view: PartView
    line: gr.HTML
    note: gr.HTML
    cancel_edit: gr.Button
    box: gr.MultimodalTextbox
    files: gr.Textbox
    """Paths of the pictures in the input; changes only when they do."""
    typed: gr.Textbox
    """How much is typed, roughly; changes now and then."""
    pressed: gr.Textbox
    """Changes when a question is sent while an answer is being written."""
    cost: gr.HTML
    lower_detail: gr.Button
    drop_oldest: gr.Button
    retry: gr.Button
    undo: gr.Button
    clear: gr.Button
    written: gr.HTML
    panel: gr.HTML
    free_caches: gr.Button
    warm_up: gr.Button
    effect: gr.HTML
    """What the two buttons did."""
    detail: gr.Radio
    webcam_fold: gr.Accordion
    webcam: gr.Image
    options_fold: gr.Accordion
    tasks: dict[str, gr.Button]
    """The quick tasks by name."""
    temperature: gr.Slider
    top_p: gr.Slider
    top_k: gr.Slider
    presence_penalty: gr.Slider
    max_new_tokens: gr.Slider
    seed: gr.Number
    preset: gr.Radio
    reset: gr.Button
    system_prompt: gr.Textbox
    history: HistoryParts

    def named(self, name: str) -> Any:
        """The part that wording() calls so."""
        if name.startswith("history_"):
            return getattr(self.history, name.removeprefix("history_"))
        is_task = name.startswith("task_")
        return self.tasks[name.removeprefix("task_")] if is_task else getattr(self, name)

    @property
    def sampling(self) -> list[Any]:
        """The inputs that options.read_sampling() reads, in its order."""
        return [getattr(self, name) for name in SAMPLING_NAMES]


def lay_out(settings: Settings, examples: Any) -> Parts:
    """Put the components where they stand, with English words on them."""
    words = wording(EN, settings)
    title = f'<header class="top"><h1>{EN.title}</h1></header>'
    with gr.Row(elem_id="top", equal_height=True):
        header = gr.HTML(title, elem_id="header", padding=False)
        retry_load = _button("retry_load", words, visible=False)
        language = _button("language", words)
        shown_language = gr.Textbox(visible="hidden", elem_id="shown-language")
    with gr.Row(elem_id="main"):
        with gr.Column(scale=3, min_width=320, elem_id="left"):
            chat = _chatbot(examples, words["chat"])
            boxes = lay_out_boxes()
            part_view = lay_out_part_view()
            line = gr.HTML("", elem_id="line", padding=False)
            with gr.Row(elem_id="note-row"):
                note = gr.HTML("", elem_id="note", padding=False)
                cancel_edit = _button("cancel_edit", words, visible=False)
            with gr.Row(elem_id="tasks"):
                tasks = {
                    task: _button(f"task_{task}", words, elem_classes="task")
                    for task in TASK_PRESETS
                }
            box = _question_box(words["box"])
            files, typed, pressed = (
                gr.Textbox(visible="hidden", elem_id=name) for name in ("files", "typed", "pressed")
            )
            with gr.Row(elem_id="cost-row"):
                cost = gr.HTML("", elem_id="cost", padding=False)
                lower_detail = _button("lower_detail", words, visible=False)
                drop_oldest = _button("drop_oldest", words, visible=False)
            with gr.Row(elem_id="buttons"):
                retry = _button("retry", words, interactive=False)
                undo = _button("undo", words, interactive=False)
                part = _button("part", words)
                clear = _button("clear", words)
            written = lay_out_written()
        with gr.Column(scale=1, min_width=280, elem_id="side"):
            panel = gr.HTML("", elem_id="panel", padding=False, js_on_load=WHILE_VISIBLE_JS)
            with gr.Row(elem_id="upkeep"):
                free_caches = _button("free_caches", words)
                warm_up = _button("warm_up", words)
                effect = gr.HTML(elem_id="effect", padding=False, **words["effect"])
            start = settings.picture.max_visual_tokens
            detail = gr.Radio(value=start, elem_id="detail", **words["detail"])
            history = lay_out_history()
            with gr.Accordion(open=False, elem_id="webcam-fold", **words["webcam_fold"]) as fold:
                webcam = _webcam()
            with gr.Accordion(open=False, elem_id="options", **words["options_fold"]) as options:
                inputs = _option_inputs(settings, words)
    return Parts(
        header, retry_load, language, shown_language, chat, boxes, part, part_view, line, note,
        cancel_edit, box, files, typed, pressed, cost, lower_detail, drop_oldest,
        retry, undo, clear, written, panel, free_caches, warm_up, effect, detail,
        fold, webcam, options, tasks,
        **inputs, history=history,
    )  # fmt: skip


def _chatbot(examples: Any, words: dict[str, Any]) -> gr.Chatbot:
    return gr.Chatbot(
        elem_id="chat",
        show_label=False,
        height="100%",
        sanitize_html=True,
        latex_delimiters=LATEX,
        buttons=["copy", "copy_all"],
        feedback_options=None,
        allow_file_downloads=False,
        editable="user",
        examples=examples,
        group_consecutive_messages=False,
        **words,
    )


def _option_inputs(settings: Settings, words: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Lay out presets, dials, system prompt and reset; returns them by their names in Parts."""
    preset = gr.Radio(elem_id="preset", **words["preset"])
    start = settings.generation
    ranges = {
        "temperature": (TEMPERATURE, start.temperature),
        "top_p": (TOP_P, start.top_p),
        "top_k": (TOP_K, start.top_k),
        "presence_penalty": (PRESENCE_PENALTY, start.presence_penalty),
        "max_new_tokens": (new_tokens_range(settings), start.max_new_tokens),
    }
    dials = {
        name: gr.Slider(limits.low, limits.high, value, step=limits.step, buttons=[], **words[name])
        for name, (limits, value) in ranges.items()
    }
    seed = gr.Number(start.seed, precision=0, minimum=-1, **words["seed"])
    system_prompt = gr.Textbox(
        lines=2,
        max_lines=6,
        max_length=LONGEST_SYSTEM_PROMPT,
        elem_id="system-prompt",
        **words["system_prompt"],
    )
    reset = _button("reset", words)
    return {**dials, "seed": seed, "preset": preset, "system_prompt": system_prompt, "reset": reset}


def _button(name: str, words: dict[str, dict[str, Any]], **options: Any) -> gr.Button:
    return gr.Button(
        size="sm", elem_id=name.replace("_", "-"), min_width=70, **words[name], **options
    )


def _question_box(words: dict[str, Any]) -> gr.MultimodalTextbox:
    return gr.MultimodalTextbox(
        elem_id="box",
        show_label=False,
        file_types=PICTURE_TYPES,
        file_count="multiple",
        sources=["upload"],
        submit_btn=True,
        stop_btn=False,
        lines=1,
        max_lines=8,
        max_plain_text_length=1_000_000,  # a long paste stays text instead of a file
        **words,
    )


def _webcam() -> gr.Image:
    return gr.Image(
        sources=["webcam"],
        type="filepath",
        height=220,
        elem_id="webcam",
        show_label=False,
        webcam_options=gr.WebcamOptions(mirror=False),
    )


def wording(texts: Texts, settings: Settings) -> dict[str, dict[str, Any]]:
    """The words of each part of the page, as the component's own arguments."""
    words: dict[str, dict[str, Any]] = {
        "retry_load": {"value": texts.retry_load},
        "language": {"value": texts.other_language},
        "chat": {"label": texts.chat, "placeholder": f"### {texts.empty_chat}"},
        "cancel_edit": {"value": texts.cancel_edit},
        "lower_detail": {"value": texts.lower_detail},
        "drop_oldest": {"value": texts.drop_oldest},
        "box": {"label": texts.question, "placeholder": texts.ask_here},
        "retry": {"value": f"↻ {texts.retry}"},
        "undo": {"value": f"↶ {texts.undo}"},
        "part": {"value": f"▣ {texts.part}"},
        "clear": {"value": f"＋ {texts.clear}"},
        "free_caches": {"value": texts.free_caches},
        "warm_up": {"value": texts.warm_up},
        "effect": {"value": effect_html(texts.upkeep_hint)},
        "detail": {
            "label": texts.detail,
            "info": texts.detail_info,
            "choices": detail_choices(settings, texts),
        },
        "webcam_fold": {"label": texts.webcam},
        "options_fold": {"label": texts.settings},
        "preset": {
            "label": texts.preset,
            "choices": [(texts.preset_name(name), name) for name in preset_order()],
        },
        "system_prompt": {
            "label": texts.system_prompt,
            "placeholder": texts.system_prompt_hint,
        },
        "reset": {"value": texts.reset},
        "history_fold": {"label": texts.earlier_chats},
        "history_zip": {"value": texts.export_zip},
        "history_json": {"value": texts.export_json},
        "history_read": {"label": texts.import_chats},
    }
    for task in TASK_PRESETS:
        words[f"task_{task}"] = {"value": texts.task_name(task)}
    for name in SAMPLING_NAMES:
        words[name] = {"label": getattr(texts, name), "info": getattr(texts, f"{name}_info")}
    return words


def detail_choices(settings: Settings, texts: Texts) -> list[tuple[str, int]]:
    """The levels of picture detail as (label, visual tokens); a custom one when it is set."""
    labels = dict(texts.details)
    choices = [(labels[name], tokens) for name, tokens in IMAGE_DETAILS.items()]
    custom = settings.picture.max_visual_tokens
    if custom not in IMAGE_DETAILS.values():
        choices.append((texts.custom_detail.format(count=custom), custom))
    return choices
