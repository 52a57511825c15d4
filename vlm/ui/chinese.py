"""Chinese forms of what the engine says: its errors, notices, reasons and progress.

The engine speaks English and knows nothing of the page. Each entry is an English sentence as
it stands in the source, {names} where values are filled in, and the same in Chinese. What has
no entry is shown in English; tests/test_ui_chinese.py finds such sentences in the source.
"""

from __future__ import annotations

import re
from functools import cache

from vlm.ui.texts import EN, ZH, Language

_AGAIN = "请重新下载模型。"
_INSTRUCT = "请使用 Qwen3-VL Instruct 模型。"
_DENSE = "请使用稠密的 Qwen3-VL Instruct 模型。"
_OTHER_FILE = "请重新保存，或换一个文件。"
_SUPPORTED = (
    "Supported are the dense Qwen3-VL models ({kind}): "
    "Qwen3-VL-2B-, 4B-, 8B- and 32B-Instruct in bf16, fp16 or fp32 safetensors"
)
_SUPPORTED_ZH = (
    "支持的是稠密的 Qwen3-VL 模型（{kind}）："
    "bf16、fp16 或 fp32 safetensors 格式的 Qwen3-VL-2B、4B、8B 和 32B-Instruct"
)

_PICTURES: dict[str, str] = {
    "This picture file is no longer there. Add it again.": "图片文件已不存在，请重新添加。",
    "The disk of this machine is full, so pictures cannot be shown. "
    "Free some space and send the question again.": (
        "本机磁盘已满，无法显示图片。请腾出空间后重新发送问题。"
    ),
    "This picture file cannot be opened. Add it again.": "图片文件无法打开，请重新添加。",
    "This picture file is empty (0 bytes). Choose another file.": (
        "图片文件是空的（0 字节），请换一个文件。"
    ),
    "This picture file has {size} MiB; the limit is {limit} MiB. Save it smaller and try again.": (
        "图片文件有 {size} MiB，上限是 {limit} MiB。请缩小后再试。"
    ),
    "This image is {width} x {height} px": "图片为 {width} x {height} 像素",
    "{shown}: it has no pixels. Choose another file.": "{shown}，没有任何像素。请换一个文件。",
    "{shown}; the limit is {limit} megapixels. Resize it and try again.": (
        "{shown}，上限是 {limit} 百万像素。请缩小后再试。"
    ),
    "{shown}; its long side may be at most {ratio} times its short side. "
    "Crop it and try again.": "{shown}，长边最多是短边的 {ratio} 倍。请裁剪后再试。",
    "There is not enough memory to open this image of {width} x {height} px. "
    "Resize it and try again.": (
        "内存不足，无法打开这张 {width} x {height} 像素的图片。请缩小后再试。"
    ),
    "This {kind} file is damaged or cut off and cannot be decoded. "
    "Save it again, or choose another file.": (
        f"{{kind}} 文件已损坏或不完整，无法解码。{_OTHER_FILE}"
    ),
    "This {kind} file is damaged or cut off and cannot be opened. "
    "Save it again, or choose another file.": (
        f"{{kind}} 文件已损坏或不完整，无法打开。{_OTHER_FILE}"
    ),
    "Use a {kinds} file.": "请使用 {kinds} 文件。",
    "JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or HEIC": (
        "JPEG、PNG、WebP、GIF、BMP、TIFF、AVIF 或 HEIC"
    ),
    "image": "图片",
    "This file is not a picture of a kind that can be read here. {readable}": (
        "这个文件不是可以读取的图片格式。{readable}"
    ),
    "This file contains text, not a picture. {readable}": "这个文件是文本，不是图片。{readable}",
    "This file is a PDF document, not a picture. Save the page as PNG and try again.": (
        "这个文件是 PDF 文档，不是图片。请把页面存为 PNG 后再试。"
    ),
    "This file is an SVG drawing, not a picture of pixels. Export it as PNG and try again.": (
        "这个文件是 SVG 矢量图，不是像素图片。请导出为 PNG 后再试。"
    ),
    "This file is a video or sound file, not a picture. Take a screenshot and use that.": (
        "这个文件是视频或音频，不是图片。请截图后使用截图。"
    ),
    "This picture is an animation; only its first frame is used.": "这是动画，只使用第一帧。",
    "This {kind} file holds several pictures; only the first is used.": (
        "这个 {kind} 文件含有多张图片，只使用第一张。"
    ),
    "The values of this picture were stretched to the visible range.": (
        "这张图片的数值已拉伸到可见范围。"
    ),
}

_QUESTIONS: dict[str, str] = {
    "This question has {count} pictures; the limit is {limit}. "
    "Remove some, or ask about them one after the other.": (
        "这个问题有 {count} 张图片，上限是 {limit} 张。请移除一些，或分几次提问。"
    ),
    "This chat has {count} pictures; the limit is {limit}. "
    "Start a new chat, or leave out earlier pictures.": (
        "对话有 {count} 张图片，上限是 {limit} 张。请开始新的对话，或去掉先前的图片。"
    ),
    "This chat has {count} characters of text; the limit is {limit}. "
    "Start a new chat, or shorten the text.": (
        "对话有 {count} 个字符，上限是 {limit}。请开始新的对话，或缩短文字。"
    ),
    "A picture cannot be read with {count} visual tokens. "
    "Choose an image detail that is a whole number from {low} to {high}.": (
        "无法用 {count} 个视觉词元读图。请把图片精细度设为 {low} 到 {high} 的整数。"
    ),
    "The {count} pictures of this chat take {visual} visual tokens; "
    "the limit is {limit} of the {context} tokens a chat may have, so that words have room. "
    "Start a new chat, remove pictures, or lower the image detail.": (
        "对话中的 {count} 张图片共需 {visual} 个视觉词元，"
        "上限是对话的 {context} 个词元中的 {limit} 个，这样文字才有空间。"
        "请开始新的对话、移除图片，或降低图片精细度。"
    ),
    "The picture of this chat takes {visual} visual tokens; the limit is {limit} of the {context} "
    "tokens a chat may have, so that words have room. "
    "Start a new chat, remove pictures, or lower the image detail.": (
        "对话中的图片需要 {visual} 个视觉词元，上限是对话的 {context} 个词元中的 {limit} 个，"
        "这样文字才有空间。请开始新的对话、移除图片，或降低图片精细度。"
    ),
    "The {visual} visual tokens; the limit is {limit} of the {context} "
    "tokens a chat may have, so that words have room. "
    "Start a new chat, remove pictures, or lower the image detail.": (
        "图片需要 {visual} 个视觉词元，上限是对话的 {context} 个词元中的 {limit} 个，"
        "这样文字才有空间。请开始新的对话、移除图片，或降低图片精细度。"
    ),
    "The answer's settings cannot be used ({faults}). Change or reset them.": (
        "回答设置无法使用（{faults}）。请修改或重置。"
    ),
    "This chat has {used} tokens, {visual} of them for pictures; the limit is {limit}. "
    "Start a new chat, remove pictures, or lower the image detail.": (
        "对话有 {used} 个词元，其中图片占 {visual} 个，上限是 {limit}。"
        "请开始新的对话、移除图片，或降低图片精细度。"
    ),
    "There is no question in this chat yet. Type one and try again.": (
        "对话里还没有问题。请输入问题后再试。"
    ),
    "This message has no text. Type a question and try again.": "消息没有文字。请输入问题后再试。",
    "This message has no text. Type a question{about} and try again.": (
        "消息没有文字。请输入关于图片的问题后再试。"
    ),
    "The model's chat template leaves out parts of this chat. Start a new chat.": (
        "模型的对话模板漏掉了对话的一部分。请开始新的对话。"
    ),
    "The model's chat template cannot express this chat ({error}). Start a new chat.": (
        "模型的对话模板无法表达这段对话（{error}）。请开始新的对话。"
    ),
    "The model's chat template does not show its {count} pictures one by one. "
    "Use a Qwen3-VL Instruct model.": f"模型的对话模板没有逐张列出 {{count}} 张图片。{_INSTRUCT}",
    "This chat is already being answered. Wait for the answer, or press Stop first.": (
        "这个对话正在回答中。请等待，或先按停止。"
    ),
    "The warm-up was stopped. Try again.": "预热已被停止，请重试。",
    "{count} questions are waiting already and the limit is {limit}. Try again in a minute.": (
        "已有 {count} 个问题在等待，上限是 {limit}。请过一分钟再试。"
    ),
    "The answer began to repeat itself, so it was stopped.": "回答开始重复，已停止。",
    "The model's output is not a number (NaN or infinity), so this answer cannot go on. "
    "Ask again; if it happens again, use --precision fp32 or another picture.": (
        "模型输出了无效数值（NaN 或无穷大），回答无法继续。"
        "请再问一次；如果再次发生，请使用 --precision fp32 或换一张图片。"
    ),
    "The memory of this machine is nearly used up: {free} is free and {least} must stay free. "
    "Close other programs, or try again when other answers have ended.": (
        "本机内存即将用尽：剩余 {free}，至少须保留 {least}。"
        "请关闭其他程序，或等其他回答结束后再试。"
    ),
    "The memory of this machine was not enough for this answer. "
    "Lower the image detail, send fewer pictures, or start a new chat.": (
        "本机内存不足以完成这个回答。请降低图片精细度、减少图片，或开始新的对话。"
    ),
    "The model stopped unexpectedly; the log has the details. "
    "Send the question again, and start a new chat if it happens twice.": (
        "模型意外停止，详情见日志。请重新发送问题；如果再次发生，请开始新的对话。"
    ),
    "The app is shutting down; start it again to ask.": "程序正在关闭，请重新启动后再提问。",
    EN.broke: ZH.broke,
    EN.unanswered: ZH.unanswered,
    EN.picture_lost: ZH.picture_lost,
}

_LOADING: dict[str, str] = {
    "Starting the engine.": "正在启动引擎。",
    "The engine could not be started. See the terminal for details.": (
        "引擎无法启动。详情请看终端。"
    ),
    "Looking for the model.": "正在查找模型。",
    "Looking for {model}": "正在查找 {model}",
    "Loading {model}.": "正在加载 {model}。",
    "Downloading {model}": "正在下载 {model}",
    "Another program is downloading": "另一个程序正在下载",
    "Checking what was downloaded before": "正在检查已下载的部分",
    "The connection broke; trying again": "连接中断，正在重试",
    "The model could not be loaded because of an unexpected fault; the log has the details. "
    "Try again, or choose another model with --model.": (
        "模型因意外错误无法加载，详情见日志。请重试，或用 --model 选择别的模型。"
    ),
    "{model} was loaded, but its {part} computes no usable numbers in {precision} precision. "
    "Try --precision fp32; if that fails too, the weights are damaged: download the model again.": (
        "{model} 已加载，但它的{part}在 {precision} 精度下算不出可用的数值。"
        "请试试 --precision fp32；如果仍然失败，说明权重已损坏：请重新下载模型。"
    ),
    "text decoder": "文本解码器",
    "vision tower": "视觉编码器",
    "This model needs at least {need} of memory, even in {precision} precision with its layers "
    "left on disk, but {free} is free. Close other programs, raise the container's memory limit, "
    "or choose a smaller model (--model bundled takes least).": (
        "即使用 {precision} 精度并把各层留在磁盘上，这个模型也至少需要 {need} 内存，"
        "而可用的只有 {free}。请关闭其他程序、提高容器的内存上限，"
        "或选择更小的模型（--model bundled 需要最少）。"
    ),
    "Memory is short: {precision} precision needs {need}, {free} is free.": (
        "内存不足：{precision} 精度需要 {need}，可用 {free}。"
    ),
    "{shortage} It runs in {precision} precision (vision {vision}, language {language}) instead, "
    "which needs {need}.": (
        "{shortage}改用 {precision} 精度（视觉 {vision}，语言 {language}），需要 {need}。"
    ),
    "{shortage} {vision} vision layers (read once per picture) and {language} decoder layers "
    "(read for every word) stay on disk, so answers are slow. "
    "Close other programs and start again, or choose a smaller model.": (
        "{shortage}{vision} 个视觉层（每张图片读一次）和 {language} 个解码层（每个词读一次）"
        "留在磁盘上，因此回答较慢。请关闭其他程序后重新启动，或选择更小的模型。"
    ),
}

_PRECISION: dict[str, str] = {
    "fp32 was asked for.": "按要求使用 fp32。",
    "int8 was asked for: a quarter of the bytes of fp32 per token.": (
        "按要求使用 int8：每个词元读取的字节是 fp32 的四分之一。"
    ),
    "16-bit weights (FBGEMM) are the usual best on x86; this machine was too busy to measure, "
    "so the next start measures again.": (
        "16 位权重（FBGEMM）在 x86 上通常最快；本机太忙，未能测量，下次启动时再测。"
    ),
    "fp32 is fastest on this CPU; measured against {others}.": (
        "fp32 在这个处理器上最快；对比测量了：{others}。"
    ),
    "{kernels} are fastest on this CPU: a token {token}x and a prompt {prompt}x as fast as fp32, "
    "measured here.": (
        "{kernels}在这个处理器上最快：本机实测，"
        "逐词元速度是 fp32 的 {token} 倍，读入速度是 {prompt} 倍。"
    ),
    "fp32 weights": "fp32 权重",
    "16-bit weights with fp32 arithmetic (FBGEMM)": "16 位权重加 fp32 运算（FBGEMM）",
    "native bf16 weights": "原生 bf16 权重",
    "Native bf16 weights": "原生 bf16 权重",
    "16-bit weights with fp32 arithmetic (FBGEMM) and native bf16 weights": (
        "16 位权重加 fp32 运算（FBGEMM）、原生 bf16 权重"
    ),
    "nothing else": "无",
    "Precision int8 needs PyTorch's FBGEMM kernels, which exist for x86 CPUs with AVX2 only. "
    "Use --precision mixed.": (
        "int8 精度需要 PyTorch 的 FBGEMM 内核，只有带 AVX2 的 x86 处理器才有。"
        "请使用 --precision mixed。"
    ),
}

_SOURCES: dict[str, str] = {
    f"{EN.bundled} {{why}}": f"{ZH.bundled}{{why}}",
    EN.bundled: ZH.bundled,
    "The real model, {model}, is not used: {error}": "未使用真正的模型 {model}：{error}",
    "If you have it on disk, give its folder with --model FOLDER.": (
        "如果磁盘上已有，请用 --model 指定它的文件夹。"
    ),
    "{error} If you have it on disk, give its folder with --model FOLDER.": (
        "{error}如果磁盘上已有，请用 --model 指定它的文件夹。"
    ),
    "{model} is neither a folder nor a model's name. Give auto, bundled, a name such as {name}, "
    "or a folder that holds config.json and safetensors.": (
        "{model} 既不是文件夹也不是模型名。请给出 auto、bundled、{name} 这样的名称，"
        "或含有 config.json 和 safetensors 的文件夹。"
    ),
    "The built-in model is missing from {folder}. "
    "Get the repository again, with its files in vlm/bundled/model.": (
        "{folder} 中没有内置模型。请重新获取代码仓库，包括 vlm/bundled/model 中的文件。"
    ),
    "{folder} holds no {config}, so it is no model. Give the folder that holds config.json, "
    "tokenizer.json, preprocessor_config.json and the safetensors.": (
        "{folder} 中没有 {config}，不是模型。请给出含有 config.json、tokenizer.json、"
        "preprocessor_config.json 和 safetensors 的文件夹。"
    ),
    "{folder} is no whole model: {problems}. Put those files there, or download the model again.": (
        f"{{folder}} 中的模型不完整：{{problems}}。请补齐这些文件，或{_AGAIN[1:]}"
    ),
    "{model} was fetched, but it is no whole model: {problems}. "
    "Choose a Qwen3-VL Instruct model.": (
        "{model} 已下载，但不完整：{problems}。请选择 Qwen3-VL Instruct 模型。"
    ),
    "{file} is missing": "缺少 {file}",
    "the chat template is missing": "缺少对话模板",
    "{file} is cut off or damaged ({error})": "{file} 不完整或已损坏（{error}）",
    "{model} is not (whole) in {folder}, and downloads are switched off in the settings. "
    "Switch them on (model.download), or give a folder with --model FOLDER.": (
        "{folder} 中没有（完整的）{model}，而设置中关闭了下载。"
        "请打开下载（model.download），或用 --model 指定文件夹。"
    ),
    "{model} is not in the local cache, and HF_HUB_OFFLINE forbids fetching it. "
    "Unset HF_HUB_OFFLINE, or give a folder with --model FOLDER.": (
        "本地缓存中没有 {model}，而 HF_HUB_OFFLINE 禁止下载。"
        "请取消 HF_HUB_OFFLINE，或用 --model 指定文件夹。"
    ),
    "{model} was not fetched: offline mode is on (HF_HUB_OFFLINE).": (
        "没有下载 {model}：离线模式已打开（HF_HUB_OFFLINE）。"
    ),
    "{hub} cannot be reached ({reason}). Check the network and a proxy (HTTPS_PROXY), or set "
    "HF_ENDPOINT to a mirror; then start again.": (
        "无法连接 {hub}（{reason}）。请检查网络和代理（HTTPS_PROXY），"
        "或把 HF_ENDPOINT 设为镜像，然后重新启动。"
    ),
    "no answer within {seconds} s": "{seconds} 秒内没有应答",
    "the connection ended early": "连接提前结束",
    "{hub} could not be asked for {model} ({error}). Check HF_ENDPOINT and the model's name.": (
        "无法向 {hub} 查询 {model}（{error}）。请检查 HF_ENDPOINT 和模型名。"
    ),
    "{hub} gave no commit for {model}; check HF_ENDPOINT.": (
        "{hub} 没有给出 {model} 的版本，请检查 HF_ENDPOINT。"
    ),
    "{model} asks for its terms to be accepted: do so at {page}, then set HF_TOKEN to a token of "
    "the same account.": (
        "{model} 要求先接受使用条款：请在 {page} 接受，再把 HF_TOKEN 设为同一账号的令牌。"
    ),
    "{hub} has no model {model} that may be read here. "
    "Check the spelling; for a private model set HF_TOKEN.": (
        "{hub} 上没有可以读取的模型 {model}。请检查拼写；私有模型需要设置 HF_TOKEN。"
    ),
    "{hub} refuses to give {model} (HTTP {status}). "
    "Set HF_TOKEN to a valid token, or unset a wrong one.": (
        "{hub} 拒绝提供 {model}（HTTP {status}）。请把 HF_TOKEN 设为有效的令牌，或取消错误的令牌。"
    ),
    "{hub} answered HTTP {status} for {model}; try again later.": (
        "{hub} 对 {model} 返回 HTTP {status}，请稍后再试。"
    ),
    "The hub gave no size or checksum for {file} of {model}.": (
        "没有得到 {model} 的 {file} 的大小或校验值。"
    ),
    "{model} holds no {config} with safetensors weights, so it cannot be loaded. Choose a "
    "Qwen3-VL Instruct model such as Qwen/Qwen3-VL-2B-Instruct (not GGUF).": (
        "{model} 没有 {config} 和 safetensors 权重，无法加载。"
        "请选择 Qwen3-VL Instruct 模型，例如 Qwen/Qwen3-VL-2B-Instruct（不要 GGUF）。"
    ),
    "{file} of {model} arrived damaged twice. "
    "Try again later, or from another network (a proxy may change files).": (
        "{model} 的 {file} 两次下载都已损坏。请稍后再试，或换一个网络（代理可能改动了文件）。"
    ),
    "The download of {model} broke ({reason}). "
    "What is here is kept: try again and it goes on from there.": (
        "{model} 的下载中断（{reason}）。已下载的部分会保留：请重试，会从中断处继续。"
    ),
    "{model} needs {need} more on the disk, but {folder} has {free} free. "
    "Free some space, or set HF_HOME to a folder on a larger disk.": (
        "{model} 还需要 {need} 磁盘空间，而 {folder} 只剩 {free}。"
        "请清理空间，或把 HF_HOME 设到更大的磁盘上。"
    ),
    "The disk of {folder} is full. Free some space, or set HF_HOME to a folder on a larger disk; "
    "then try again and the download goes on.": (
        "{folder} 所在的磁盘已满。请清理空间，或把 HF_HOME 设到更大的磁盘上，然后重试，下载会继续。"
    ),
    "{folder} cannot be written ({error}). Set HF_HOME to a folder that may be written.": (
        "无法写入 {folder}（{error}）。请把 HF_HOME 设为可写的文件夹。"
    ),
}

_CHECKPOINTS: dict[str, str] = {
    "{file} is missing; download the model again.": f"缺少 {{file}}，{_AGAIN}",
    "{file} is missing, but the index names it; download the model again.": (
        f"索引中列出的 {{file}} 不存在，{_AGAIN}"
    ),
    "{file} holds no JSON object; download the model again.": f"{{file}} 不是 JSON 对象，{_AGAIN}",
    "{file} cannot be read ({error}); delete it and download the model again.": (
        f"无法读取 {{file}}（{{error}}），请删除它，{_AGAIN}"
    ),
    "{file} of the model cannot be read ({error}). Download the model again.": (
        f"无法读取模型的 {{file}}（{{error}}）。{_AGAIN}"
    ),
    "{file} is cut off or damaged ({error}); delete it and download it again.": (
        "{file} 不完整或已损坏（{error}），请删除后重新下载。"
    ),
    "{name} in {file} holds numbers that are not finite: the file is damaged. "
    "Delete it and download it again.": (
        "{file} 中的 {name} 含有非有限的数：文件已损坏。请删除后重新下载。"
    ),
    "{name} cannot be read from {file} ({error}); download it again.": (
        "无法从 {file} 读取 {name}（{error}），请重新下载。"
    ),
    "{file} and {other} both hold {name}; download the model again.": (
        f"{{file}} 和 {{other}} 都含有 {{name}}，{_AGAIN}"
    ),
    "{file} names no weights; download the model again.": f"{{file}} 没有列出权重，{_AGAIN}",
    "{file} names a file outside its folder: {name}": "{file} 列出了文件夹之外的文件：{name}",
    "{folder} describes no model that can be built ({error}); download the model again.": (
        f"{{folder}} 描述的模型无法构建（{{error}}），{_AGAIN}"
    ),
    "{source} is a {found}, which cannot run here. {supported}": (
        "{source} 是 {found}，无法在这里运行。{supported}"
    ),
    "{source} holds quantised weights ({method}), which cannot run here. {supported}; take the "
    "model without the suffix (precision is reduced while loading).": (
        "{source} 含有量化权重（{method}），无法在这里运行。{supported}；"
        "请使用不带后缀的模型（精度会在加载时降低）。"
    ),
    _SUPPORTED: _SUPPORTED_ZH,
    f"{_SUPPORTED}.": f"{_SUPPORTED_ZH}。",
    "Mixture-of-experts models (30B-A3B, 235B-A22B) are not.": (
        "不支持混合专家模型（30B-A3B、235B-A22B）。"
    ),
    f"{_SUPPORTED}. Mixture-of-experts models (30B-A3B, 235B-A22B) are not.": (
        f"{_SUPPORTED_ZH}，不支持混合专家模型（30B-A3B、235B-A22B）。"
    ),
    "{source} has a {file} that describes no model: {faults}. Download the model again.": (
        f"{{source}} 的 {{file}} 没有描述任何模型：{{faults}}。{_AGAIN}"
    ),
    "{folder} holds weights this app has no use for: {names}. "
    "Use a dense Qwen3-VL Instruct model.": (f"{{folder}} 含有用不上的权重：{{names}}。{_DENSE}"),
    "The weights in {folder} do not fit the model:{faults}\nDownload the model again, or check "
    "that all files belong together.": (
        f"{{folder}} 中的权重与模型不符：{{faults}}\n{_AGAIN[:-1]}，"
        "或检查所有文件是否属于同一个模型。"
    ),
    "config.json in {folder} ties lm_head to the embeddings, but the two differ in the weights. "
    "Set tie_word_embeddings to what the model was trained with, or download it again.": (
        "{folder} 的 config.json 让 lm_head 与词嵌入共用权重，但两者并不相同。"
        "请把 tie_word_embeddings 改为训练时的值，或重新下载。"
    ),
    "The model's files do not belong together: {what} is {one} in config.json but {other} in its "
    "tokenizer or preprocessor_config.json. Download it again.": (
        "模型的文件不匹配：{what} 在 config.json 中是 {one}，"
        "在分词器或 preprocessor_config.json 中是 {other}。请重新下载。"
    ),
    "The rotary frequencies of the {part} part differ from the reference implementation's; "
    "config.json asks for a kind of positions that is not supported. "
    "Use a dense Qwen3-VL Instruct model.": (
        f"{{part}} 部分的旋转频率与参考实现不同；config.json 要求的位置编码不受支持。{_DENSE}"
    ),
    "text_config.{key} is {value}; supported is {supported}. "
    "Use one of the dense Qwen3-VL Instruct models.": (
        f"text_config.{{key}} 是 {{value}}，支持的是 {{supported}}。{_DENSE}"
    ),
    "vision_config.{key} is {value}; supported is {supported}. "
    "Use one of the dense Qwen3-VL Instruct models.": (
        f"vision_config.{{key}} 是 {{value}}，支持的是 {{supported}}。{_DENSE}"
    ),
    "{section} has no {key}; download the model's config.json again.": (
        "{section} 缺少 {key}，请重新下载模型的 config.json。"
    ),
    "{section} is damaged ({error}); download the model's config.json again.": (
        "{section} 已损坏（{error}），请重新下载模型的 config.json。"
    ),
    "The model's tokenizer has no {token} token or no stop token. Use a Qwen3-VL Instruct model.": (
        f"模型的分词器没有 {{token}} 或没有结束词元。{_INSTRUCT}"
    ),
    "The model folder has no usable {file} ({error}). Download the model again.": (
        f"模型文件夹中没有可用的 {{file}}（{{error}}）。{_AGAIN}"
    ),
    "The model folder has no chat template (chat_template.jinja or .json). "
    "Use an Instruct model, or download it again.": (
        "模型文件夹中没有对话模板（chat_template.jinja 或 .json）。"
        "请使用 Instruct 模型，或重新下载。"
    ),
}

_SERVERS: dict[str, str] = {
    "Asking {host} for its models.": "正在向 {host} 询问模型列表。",
    "{host} has no model ready yet. It is asked again until it has one.": (
        "{host} 还没有可用的模型，会一直询问到有为止。"
    ),
    "{host} does not list its models. Name one with --model, "
    "and check that --base-url is the address of a chat server.": (
        "{host} 没有模型列表。请用 --model 指定一个，并检查 --base-url 是否为对话服务器的地址。"
    ),
    "Remote: {model} at {host}. Questions and pictures are sent there; "
    "the memory panel shows this process only.": (
        "远程：{host} 上的 {model}。问题和图片会发送到那里，内存面板只显示本进程。"
    ),
    "Remote: {model} at {host}. Questions and pictures are sent there; "
    "the memory panel shows this process only. {more}": (
        "远程：{host} 上的 {model}。问题和图片会发送到那里，内存面板只显示本进程。{more}"
    ),
    "{host} does not list this model, but {names}. "
    "If it fails, choose one of those with --model.": (
        "{host} 的列表里没有这个模型，只有 {names}。如果失败，请用 --model 选择其中一个。"
    ),
    "What {host} answers is no list of models. "
    "Give an address such as http://HOST:8000/v1 with --base-url.": (
        "{host} 返回的不是模型列表。请用 --base-url 指定类似 http://HOST:8000/v1 的地址。"
    ),
    "The certificate of {host} is not trusted ({why}). "
    "Use an address with a valid one, or name its authority's file in SSL_CERT_FILE.": (
        "{host} 的证书不受信任（{why}）。请使用证书有效的地址，"
        "或在 SSL_CERT_FILE 中指定颁发机构的文件。"
    ),
    "{host} does not speak TLS, which https:// needs. "
    "Check --base-url: the server may want http://.": (
        "{host} 不支持 https:// 所需的 TLS。请检查 --base-url，服务器可能要用 http://。"
    ),
    "No machine is known as {host}. Check --base-url and the network.": (
        "找不到名为 {host} 的机器。请检查 --base-url 和网络。"
    ),
    "The proxy did not let a request to {host} through. Check HTTPS_PROXY and NO_PROXY.": (
        "代理没有放行发往 {host} 的请求。请检查 HTTPS_PROXY 和 NO_PROXY。"
    ),
    "{host} cannot be reached. Check that the server runs, "
    "that --base-url is its address, and that no firewall is between.": (
        "无法连接 {host}。请检查服务器是否在运行、--base-url 是否正确，以及中间是否有防火墙。"
    ),
    "{host} was silent for too long. Try again when it has less to do.": (
        "{host} 太久没有回应。请等它空闲时再试。"
    ),
    "The connection to {host} broke off before an answer came. Try again.": (
        "与 {host} 的连接在回答到来之前中断了。请再试一次。"
    ),
    "The connection to {host} broke off.": "与 {host} 的连接中断了。",
    "{why} The answer above is not whole.": "{why}上面的回答不完整。",
    "This chat with its answer is longer than {model} at {host} takes. "
    "Start a new chat, remove pictures, or choose a smaller longest answer.": (
        "对话连同回答超出了 {host} 上的 {model} 的上限。"
        "请开始新的对话、移除图片，或调小回答长度上限。"
    ),
    "{model} at {host} takes no pictures. Choose a model that does with --model, "
    "or ask without pictures.": (
        "{host} 上的 {model} 不能看图。请用 --model 选择能看图的模型，或不带图片提问。"
    ),
    "{host} failed to answer (status {status}). Try again; its own log says why.": (
        "{host} 未能回答（状态码 {status}）。请再试一次，原因在它自己的日志里。"
    ),
    "{host} refused this with status {status}: {why}. Change the question or the settings.": (
        "{host} 拒绝了请求（状态码 {status}）：{why}。请修改问题或设置。"
    ),
    "it gave no reason": "没有说明原因",
    "{host} does not allow this. Check what its key may do.": (
        "{host} 不允许这样做。请检查密钥的权限。"
    ),
    "{host} has no model {model}, or nothing answers chats there. Check --model and --base-url.": (
        "{host} 没有模型 {model}，或那里没有对话服务。请检查 --model 和 --base-url。"
    ),
    "This chat is too large for {host}. Remove pictures, or lower the image detail.": (
        "对话对 {host} 来说太大。请移除图片，或降低图片精细度。"
    ),
    "{host} takes no more questions now. Try again {when}.": (
        "{host} 现在不再接受问题。请{when}再试。"
    ),
    "later": "稍后",
    "in {seconds} s": "在 {seconds} 秒后",
    "{host} sends on to another address. Give that one with --base-url.": (
        "{host} 转到了另一个地址。请用 --base-url 指定那个地址。"
    ),
    "{host} is not ready (status {status}). Try again in a minute.": (
        "{host} 尚未就绪（状态码 {status}）。请稍后再试。"
    ),
    "{host} does not accept the key. Put the right one into the environment "
    "variable {name}, and start again.": (
        "{host} 不接受这个密钥。请把正确的密钥放入环境变量 {name}，然后重新启动。"
    ),
    "{host} wants a key. Put it into an environment variable, and start again with "
    "--api-key-env and the variable's name.": (
        "{host} 需要密钥。请把它放入环境变量，再用 --api-key-env 指定变量名重新启动。"
    ),
    "The server sent one part of an answer that is longer than any answer in words. "
    "Check that the address is one of a chat server.": (
        "服务器发来的内容长得不像文字回答。请检查地址是否为对话服务器。"
    ),
    "{host} ended without an answer. "
    "Check that --base-url is the address of a chat server, and try again.": (
        "{host} 没有给出回答就结束了。请检查 --base-url 是否为对话服务器的地址，然后再试。"
    ),
    "{host} does not take {names}: left out.": "{host} 不接受 {names}，已略去。",
    "A filter of {host} ended this answer.": "{host} 的过滤器结束了这个回答。",
    "The model only thought and wrote no answer. Allow a longer answer.": (
        "模型只思考了，没有写出回答。请允许更长的回答。"
    ),
    "The answer ended because of an unexpected fault; the log has it. Try again.": (
        "回答因意外故障而结束，详情见日志。请再试一次。"
    ),
    "The proxy that the environment names (HTTPS_PROXY, ALL_PROXY) cannot be used. "
    "Take it out, or add the server to NO_PROXY.": (
        "环境变量（HTTPS_PROXY、ALL_PROXY）指定的代理无法使用。请去掉它，或把服务器加入 NO_PROXY。"
    ),
}

FORMS: dict[str, str] = (
    _PICTURES | _QUESTIONS | _LOADING | _PRECISION | _SOURCES | _CHECKPOINTS | _SERVERS
)
"""All sentences, English to Chinese."""

_DEEPEST = 5
"""How far sentences stand inside each other at most."""


def in_language(sentence: str, language: Language) -> str:
    """Give an engine's English sentence in a language; unknown ones stay English."""
    return _in_chinese(sentence, _DEEPEST) if language == "zh" else sentence


def _in_chinese(sentence: str, depth: int) -> str:
    if depth and (exact := FORMS.get(sentence)) and "{" not in sentence:
        return exact
    for pattern, chinese in _patterns() if depth else ():
        if match := pattern.fullmatch(sentence):
            values = match.groupdict()
            return chinese.format(**{k: _in_chinese(v, depth - 1) for k, v in values.items()})
    if 0 < depth < _DEEPEST and "; " in sentence:  # a list of problems
        return "；".join(_in_chinese(part, depth - 1) for part in sentence.split("; "))
    return sentence


@cache
def _patterns() -> list[tuple[re.Pattern[str], str]]:
    """The entries with places to fill in, the most particular ones first.

    What begins with a word of its own stands around other sentences: it goes before the rest.
    """
    entries = [(english, chinese) for english, chinese in FORMS.items() if "{" in english]
    entries.sort(
        key=lambda entry: (entry[0][0] != "{", len(re.sub(r"\{\w+\}", "", entry[0]))),
        reverse=True,
    )
    return [(_pattern(english), chinese) for english, chinese in entries]


def _pattern(english: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", english)
    pieces = (f"(?P<{p}>.*?)" if i % 2 else re.escape(p) for i, p in enumerate(parts))
    return re.compile("".join(pieces), re.DOTALL)
