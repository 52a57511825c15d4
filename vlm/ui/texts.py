"""Every sentence of the page, in English and Chinese."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class Texts:
    """The page's words in one language; {braces} are filled in where they are used."""

    language: Language
    other_language: str
    title: str
    # The model on its way
    finding: str
    downloading: str
    loading: str
    ready: str
    failed: str
    closed: str
    eta: str
    bundled: str
    how_to_get_real: str
    retry_load: str
    # The chat
    chat: str
    empty_chat: str
    question: str
    ask_here: str
    retry: str
    undo: str
    clear: str
    left_out: str
    editing: str
    cancel_edit: str
    with_pictures: str
    colon: str
    no_question: str
    still_answering: str
    # What a question will cost
    cost_picture: str
    cost_pictures: str
    cost_reading: str
    cost_read: str
    cost_first: str
    cost_at_once: str
    cost_too_long: str
    cost_cut_off: str
    cost_memory: str
    lower_detail: str
    drop_oldest: str
    about_left: str
    about_wait: str
    about_seconds: str
    about_minutes: str
    # What cannot be asked
    too_many_pictures: str
    text_too_long: str
    broke: str
    # The wait
    queued_next: str
    queued: str
    wait_loading: str
    wait_vision: str
    wait_prefill: str
    wait_begin: str
    wait_decode: str
    waited: str
    # The answer
    stopped: str
    at_length: str
    in_loop: str
    empty_answer: str
    first_word: str
    speed: str
    token_counts: str
    first_word_of_server: str
    token_counts_of_server: str
    answers: str
    column_answer: str
    column_queue: str
    column_vision: str
    column_prefill: str
    column_first: str
    column_speed: str
    column_prompt: str
    column_new: str
    column_end: str
    ends: tuple[tuple[str, str], ...]
    # Boxes
    boxes: str
    found: str
    found_in: str
    boxed_picture: str
    no_label: str
    boxes_png: str
    boxes_json: str
    # A part of a picture
    part: str
    part_hint: str
    part_needs_picture: str
    part_keys: str
    part_place: str
    part_take: str
    part_close: str
    # Settings
    detail: str
    detail_info: str
    details: tuple[tuple[str, str], ...]
    custom_detail: str
    settings: str
    temperature: str
    temperature_info: str
    top_p: str
    top_p_info: str
    top_k: str
    top_k_info: str
    presence_penalty: str
    presence_penalty_info: str
    max_new_tokens: str
    max_new_tokens_info: str
    seed: str
    seed_info: str
    preset: str
    presets: tuple[tuple[str, str], ...]
    system_prompt: str
    system_prompt_hint: str
    reset: str
    tasks: tuple[tuple[str, str, str], ...]
    """Quick tasks: name, button, and the question that is filled in."""
    webcam: str
    # Earlier chats
    earlier_chats: str
    no_earlier: str
    no_title: str
    history_hint: str
    new_chat_hint: str
    drop_chat: str
    drop_all: str
    sure_drop: str
    sure_drop_all: str
    export_zip: str
    export_json: str
    import_chats: str
    imported: str
    not_imported: str
    nothing_to_export: str
    kept_broken: str
    small_pictures: str
    unanswered: str
    picture_lost: str
    # The panel
    memory: str
    process: str
    weights: str
    kv_caches: str
    pictures: str
    rest: str
    machine: str
    container: str
    free_of: str
    cpu: str
    cores: str
    precision: str
    model: str
    conversations: str
    not_known: str
    server: str
    server_hint: str
    memory_line: str
    cpu_line: str
    two_minutes: str
    model_size: str
    free_caches: str
    warm_up: str
    upkeep_hint: str
    freed: str
    nothing_to_free: str
    warming_up: str
    warmed_up: str

    def end(self, finish_reason: str) -> str:
        """Name a finish reason in words."""
        return dict(self.ends).get(finish_reason, finish_reason)

    def preset_name(self, name: str) -> str:
        """Name a preset in words; one that was added to configs/presets by its file's name."""
        return dict(self.presets).get(name, name.replace("_", " ").capitalize())

    def task_name(self, task: str) -> str:
        """Say what stands on a quick task's button."""
        return next(button for name, button, _ in self.tasks if name == task)

    def task_prompt(self, task: str) -> str:
        """Return the question that a quick task asks."""
        return next(prompt for name, _, prompt in self.tasks if name == task)


EN = Texts(
    language="en",
    other_language="中文",
    title="Talk to a picture",
    finding="Looking for the model",
    downloading="Downloading the model",
    loading="Loading the model",
    ready="Ready",
    failed="The model could not be loaded",
    closed="The app is shutting down",
    eta="about {time} left",
    bundled=(
        "This is the small built-in model: it knows shapes, colours and short words only, "
        "not your photos."
    ),
    how_to_get_real=(
        "For the real one, start with a network and without --model bundled: Qwen3-VL-2B "
        "is then downloaded once (about 4.3 GB). Or start with --model FOLDER."
    ),
    retry_load="Try again",
    chat="Chat",
    empty_chat="Drop, paste or attach a picture below and ask about it, or try one of these",
    question="Question",
    ask_here="Ask about a picture",
    retry="Retry",
    undo="Undo",
    clear="New chat",
    left_out='"{name}" was taken out: {why}',
    editing="Editing question {number}. Sending it replaces it; what came after it is dropped.",
    cancel_edit="Cancel",
    with_pictures=" (pictures: {count})",
    colon=":",
    no_question="Write a question or add a picture first.",
    still_answering="Still answering: press Stop first, or wait.",
    cost_picture="{width} × {height} → {visual} visual tokens",
    cost_pictures="{count} pictures → {visual} visual tokens",
    cost_reading="being read while you write: {percent} %",
    cost_read="already read",
    cost_first="about {time} to the first word",
    cost_at_once="the answer starts at once",
    cost_too_long=(
        "This does not fit: with the question the chat has about {used} tokens, and it can hold "
        "{limit}."
    ),
    cost_cut_off=(
        "The answer may be cut off: the chat can hold {limit} tokens, and about {left} are left."
    ),
    cost_memory="Memory is short: this needs about {need} more, and {free} may be used.",
    lower_detail="Lower the detail",
    drop_oldest="Drop the oldest messages",
    about_left=", about {time} left",
    about_wait=", about {time}",
    about_seconds="{count} s",
    about_minutes="{count} min",
    too_many_pictures=(
        "{count} pictures were added; one question takes at most {limit}. "
        "Remove some and send again."
    ),
    text_too_long=(
        "The question has {count} characters; the limit is {limit}. Shorten it and send again."
    ),
    broke="The model stopped unexpectedly. See the terminal for details.",
    queued_next="Waiting: one answer is being written before yours",
    queued="Waiting: {ahead} questions are ahead of yours",
    wait_loading="The model is still loading; your question is kept",
    wait_vision="Reading the picture: {percent} %",
    wait_prefill="Reading the question: {percent} %",
    wait_begin="Beginning",
    wait_decode="Writing",
    waited="{seconds} s so far",
    stopped="Stopped here.",
    at_length="Cut off here: the limit of new tokens was reached.",
    in_loop="Ended here: the answer had begun to repeat itself.",
    empty_answer="(The model gave an empty answer.)",
    first_word="{time} to the first word (picture {vision}, prompt {prefill})",
    speed="{speed} tokens/s",
    token_counts="{visual} visual, {new} new, {reused} reused tokens",
    first_word_of_server="{time} to the first word",
    token_counts_of_server="{prompt} tokens in, {new} out",
    answers="All answers of this chat",
    column_answer="Answer",
    column_queue="Queue",
    column_vision="Picture",
    column_prefill="Prompt",
    column_first="First word",
    column_speed="Tokens/s",
    column_prompt="Tokens in (visual, reused)",
    column_new="Tokens out",
    column_end="End",
    ends=(
        ("stop", "complete"),
        ("length", "token limit"),
        ("cancelled", "stopped"),
        ("loop", "repetition"),
    ),
    boxes="Boxes",
    found="Found in the picture: {count}",
    found_in="Found in picture {number}: {count}",
    boxed_picture="The picture with the boxes of the answer",
    no_label="(no name)",
    boxes_png="Save picture with boxes",
    boxes_json="Save boxes in pixels (JSON)",
    part="Ask about a part",
    part_hint=(
        "Drag over the part you mean. It goes into the input at full detail, after a small copy "
        "of the whole picture."
    ),
    part_needs_picture="Add a picture first, then choose a part of it.",
    part_keys="Arrow keys move the part, with Shift they resize it. Enter takes it, Escape closes.",
    part_place="{left} % from the left, {top} % from the top, {width} x {height} % large",
    part_take="Take this part",
    part_close="Close",
    detail="Picture detail",
    detail_info="Finer reads small print, and takes longer",
    details=(("fast", "Fast"), ("balanced", "Balanced"), ("fine", "Fine")),
    custom_detail="Custom ({count})",
    settings="Answer settings",
    temperature="Temperature",
    temperature_info="0: always the likeliest word. Higher: more varied",
    top_p="Top-p",
    top_p_info="Share of probability to draw from",
    top_k="Top-k",
    top_k_info="Words to draw from; 0: all",
    presence_penalty="Presence penalty",
    presence_penalty_info="Higher: repeats itself less",
    max_new_tokens="Longest answer",
    max_new_tokens_info="In tokens; a word takes one or two",
    seed="Seed",
    seed_info="-1: a new one each time",
    preset="Preset",
    presets=(
        ("precise", "Precise"),
        ("balanced", "Balanced"),
        ("creative", "Creative"),
        ("read_text", "Read text"),
        ("find_boxes", "Find boxes"),
    ),
    system_prompt="System prompt",
    system_prompt_hint="How the model should answer, for all questions of this chat",
    reset="Reset to the model's defaults",
    tasks=(
        ("describe", "Describe", "Describe this image."),
        ("read", "Read all text", "Read all text."),
        (
            "chart",
            "Explain chart",
            "Explain this chart: what it shows, its axes and units, the highest and lowest "
            "values, and what follows from it.",
        ),
        ("boxes", "List objects with boxes", "List objects with boxes as JSON."),
        (
            "translate",
            "Translate text",
            "Translate all text in the picture into English. "
            "Give each line first as it stands, then its translation.",
        ),
    ),
    webcam="Take a photo",
    earlier_chats="Earlier chats",
    no_earlier="None yet.",
    no_title="Picture",
    history_hint=(
        "Kept in this browser only, up to 3 MB; the oldest go first. “New chat” puts the "
        "present one here."
    ),
    new_chat_hint=(
        "Starts an empty chat. The present one stays under “Earlier chats”, where it can be "
        "deleted."
    ),
    drop_chat="Delete",
    drop_all="Delete all",
    sure_drop="Delete?",
    sure_drop_all="Delete all for good?",
    export_zip="Save as ZIP",
    export_json="Save as JSON",
    import_chats="Import JSON",
    imported="Chats taken from the file: {count}. They are under “Earlier chats”.",
    not_imported=(
        "This file holds no chats of this page, or is larger than 8 MB. Choose a file made by "
        "“Save as JSON”."
    ),
    nothing_to_export="There is no chat to save yet.",
    kept_broken="A chat kept in this browser could not be read and is left out.",
    small_pictures=(
        "Pictures of this chat are small copies now, and a follow-up question sees only these. "
        "Add a picture again where detail matters."
    ),
    unanswered="This question was not answered. Press Retry to ask it again.",
    picture_lost="Pictures of this question that are no longer kept: {count}",
    memory="Memory",
    process="This app: {size}",
    weights="weights",
    kv_caches="chats",
    pictures="pictures",
    rest="rest",
    machine="Machine",
    container="Container",
    free_of="{free} of {total} free",
    cpu="CPU",
    cores="{percent} % of {cores} cores",
    precision="Precision",
    model="Model",
    conversations="Chats kept ready",
    not_known="not known yet",
    server="Server",
    server_hint="runs the model; memory and CPU shown here are this process only",
    memory_line="Memory over the last two minutes: now {now}, {most} at most",
    cpu_line="CPU over the last two minutes: now {percent} %",
    two_minutes="The last two minutes",
    model_size="{count} parameters, {size}",
    free_caches="Free caches",
    warm_up="Warm up",
    upkeep_hint="Freeing only slows everyone's next answer.",
    freed="Freed {size}.",
    nothing_to_free="There was nothing to free.",
    warming_up="Warming up …",
    warmed_up="Ready: first token after {time}.",
)

ZH = Texts(
    language="zh",
    other_language="English",
    title="与图片对话",
    finding="正在查找模型",
    downloading="正在下载模型",
    loading="正在加载模型",
    ready="就绪",
    failed="模型无法加载",
    closed="程序正在关闭",
    eta="大约还需 {time}",
    bundled="当前是内置的小模型：它只认识形状、颜色和短单词，不认识照片。",
    how_to_get_real=(
        "要使用真正的模型，请连接网络后不带 --model bundled 重新启动："
        "会下载一次 Qwen3-VL-2B（约 4.3 GB）；或用 --model 指定文件夹启动。"
    ),
    retry_load="重试",
    chat="对话",
    empty_chat="在下面拖入、粘贴或添加图片并提问，或试试这些例子",
    question="问题",
    ask_here="就图片提问",
    retry="重新回答",
    undo="撤回",
    clear="新对话",
    left_out="已移除“{name}”：{why}",
    editing="正在修改第 {number} 个问题。发送后将替换它，其后的内容会删除。",
    cancel_edit="取消",
    with_pictures="（图片：{count}）",
    colon="：",
    no_question="请先输入问题或添加图片。",
    still_answering="仍在回答：请先按停止，或等待。",
    cost_picture="{width} × {height} → {visual} 个视觉词元",
    cost_pictures="{count} 张图片 → {visual} 个视觉词元",
    cost_reading="正在读取，您可以先输入问题：{percent} %",
    cost_read="已读取",
    cost_first="约 {time}后出现首字",
    cost_at_once="回答会立即开始",
    cost_too_long="放不下：加上这个问题，对话约有 {used} 个词元，上限是 {limit}。",
    cost_cut_off="回答可能被截断：对话上限是 {limit} 个词元，只剩约 {left} 个。",
    cost_memory="内存不足：还需要约 {need}，可用 {free}。",
    lower_detail="降低精细度",
    drop_oldest="删除最早的消息",
    about_left="，约剩 {time}",
    about_wait="，约 {time}",
    about_seconds="{count} 秒",
    about_minutes="{count} 分钟",
    too_many_pictures="添加了 {count} 张图片，一次最多 {limit} 张。请移除一些后再发送。",
    text_too_long="问题有 {count} 个字符，上限是 {limit}。请缩短后再发送。",
    broke="模型意外停止。详情请看终端。",
    queued_next="等待中：前面有一个回答正在生成",
    queued="等待中：前面还有 {ahead} 个问题",
    wait_loading="模型还在加载，你的问题已保留",
    wait_vision="正在看图：{percent} %",
    wait_prefill="正在读问题：{percent} %",
    wait_begin="即将开始",
    wait_decode="正在回答",
    waited="已用 {seconds} 秒",
    stopped="已在此处停止。",
    at_length="在此处截断：已达到回答长度上限。",
    in_loop="在此处结束：回答开始重复。",
    empty_answer="（模型给出了空的回答。）",
    first_word="首字 {time}（图片 {vision}，提示 {prefill}）",
    speed="{speed} 词元/秒",
    token_counts="词元：视觉 {visual}、新生成 {new}、复用 {reused}",
    first_word_of_server="首字 {time}",
    token_counts_of_server="词元：输入 {prompt}、输出 {new}",
    answers="本对话的所有回答",
    column_answer="回答",
    column_queue="排队",
    column_vision="图片",
    column_prefill="提示",
    column_first="首字",
    column_speed="词元/秒",
    column_prompt="输入词元（视觉、复用）",
    column_new="输出词元",
    column_end="结束",
    ends=(("stop", "完成"), ("length", "达到上限"), ("cancelled", "已停止"), ("loop", "重复")),
    boxes="标注框",
    found="在图片中找到：{count}",
    found_in="在第 {number} 张图片中找到：{count}",
    boxed_picture="带有回答中标注框的图片",
    no_label="（无名称）",
    boxes_png="保存带框的图片",
    boxes_json="保存像素坐标（JSON）",
    part="只问一部分",
    part_hint="在图上拖出要问的部分。它会以完整精度放入输入框，前面附上整张图片的小图。",
    part_needs_picture="请先添加图片，再选择其中一部分。",
    part_keys="方向键移动所选部分，按住 Shift 调整大小；Enter 确认，Esc 关闭。",
    part_place="距左 {left} %，距上 {top} %，大小 {width} x {height} %",
    part_take="选用这一部分",
    part_close="关闭",
    detail="图片精细度",
    detail_info="越精细越能看清小字，也越慢",
    details=(("fast", "快速"), ("balanced", "均衡"), ("fine", "精细")),
    custom_detail="自定义（{count}）",
    settings="回答设置",
    temperature="温度",
    temperature_info="0：总取最可能的词；越高越多样",
    top_p="Top-p",
    top_p_info="抽取范围的概率份额",
    top_k="Top-k",
    top_k_info="抽取范围的词数；0：全部",
    presence_penalty="重复惩罚",
    presence_penalty_info="越高越少重复",
    max_new_tokens="最长回答",
    max_new_tokens_info="以词元计，一个字约一个词元",
    seed="随机种子",
    seed_info="-1：每次不同",
    preset="预设",
    presets=(
        ("precise", "精确"),
        ("balanced", "均衡"),
        ("creative", "创意"),
        ("read_text", "读文字"),
        ("find_boxes", "找物体"),
    ),
    system_prompt="系统提示",
    system_prompt_hint="希望模型如何回答，对本对话的所有问题有效",
    reset="恢复模型默认值",
    tasks=(
        ("describe", "描述图片", "描述这张图片。"),
        ("read", "读出文字", "请读出图中的文字。"),
        (
            "chart",
            "解释图表",
            "解释这张图表：它展示了什么、坐标轴和单位、最高值和最低值，以及能得出什么结论。",
        ),
        ("boxes", "列出物体和边框", "用JSON给出所有物体的边界框。"),
        ("translate", "翻译文字", "把图中的所有文字翻译成中文。先写出每行原文，再写出译文。"),
    ),
    webcam="拍照",
    earlier_chats="以前的对话",
    no_earlier="还没有。",
    no_title="图片",
    history_hint="只保存在这个浏览器中，最多 3 MB，最旧的先删除。点“新对话”会把当前对话放到这里。",
    new_chat_hint="开始新的对话。当前对话保留在“以前的对话”中，可在那里删除。",
    drop_chat="删除",
    drop_all="全部删除",
    sure_drop="删除？",
    sure_drop_all="确定全部删除？",
    export_zip="保存为 ZIP",
    export_json="保存为 JSON",
    import_chats="导入 JSON",
    imported="已从文件导入对话：{count}，见“以前的对话”。",
    not_imported="这个文件不是本页面的对话，或超过 8 MB。请选择用“保存为 JSON”生成的文件。",
    nothing_to_export="还没有可以保存的对话。",
    kept_broken="这个浏览器中保存的一段对话无法读取，已略过。",
    small_pictures="这段对话的图片现在是缩小的副本，继续提问时模型只看到副本。需要细节时请重新添加图片。",
    unanswered="这个问题没有得到回答。点“重新回答”可再次提问。",
    picture_lost="此问题中未保留的图片：{count}",
    memory="内存",
    process="本程序：{size}",
    weights="权重",
    kv_caches="对话",
    pictures="图片",
    rest="其他",
    machine="本机",
    container="容器",
    free_of="可用 {free}，共 {total}",
    cpu="处理器",
    cores="{cores} 核的 {percent} %",
    precision="精度",
    model="模型",
    conversations="已缓存的对话",
    not_known="尚未知",
    server="服务器",
    server_hint="运行模型；这里的内存和处理器只是本进程的",
    memory_line="最近两分钟的内存：现在 {now}，最高 {most}",
    cpu_line="最近两分钟的处理器：现在 {percent} %",
    two_minutes="最近两分钟",
    model_size="{count} 参数，{size}",
    free_caches="释放缓存",
    warm_up="预热",
    upkeep_hint="释放缓存会让所有人的下一个回答变慢，但内容不变。",
    freed="已释放 {size}。",
    nothing_to_free="没有可释放的缓存。",
    warming_up="正在预热……",
    warmed_up="就绪：{time} 后出现首个词元。",
)

_BY_LANGUAGE: dict[Language, Texts] = {"en": EN, "zh": ZH}


def texts_in(language: Language) -> Texts:
    """Give the page's words in a language."""
    return _BY_LANGUAGE[language]


def other(language: Language) -> Language:
    """Name the language that the switch leads to."""
    return "zh" if language == "en" else "en"


def preferred_language(accept_language: str | None) -> Language:
    """Choose by a browser's Accept-Language header: Chinese when it stands before English."""
    for part in (accept_language or "").split(","):
        name = part.split(";")[0].strip().lower()
        if name.startswith("zh"):
            return "zh"
        if name.startswith("en"):
            return "en"
    return "en"


def field_names() -> tuple[str, ...]:
    """Names of all texts, for tests that compare the languages."""
    return tuple(field.name for field in fields(Texts))


def about(seconds: float, texts: Texts) -> str:
    """Write a duration that is only an estimate: no finer than it can be believed."""
    if seconds < 9.5:
        return texts.about_seconds.format(count=max(1, round(seconds)))
    if seconds < 57.5:
        return texts.about_seconds.format(count=5 * round(seconds / 5))
    if seconds < 115:
        return texts.about_seconds.format(count=10 * round(seconds / 10))
    return texts.about_minutes.format(count=round(seconds / 60))
