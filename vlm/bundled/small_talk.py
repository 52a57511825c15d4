"""What the built-in model says where no picture is asked about, or nothing it knows."""

from __future__ import annotations

from typing import Literal

Language = Literal["en", "zh"]

HONEST_ANSWER: dict[Language, str] = {
    "en": "This is the small built-in model: it knows shapes, colours and short words only.",
    "zh": "这是内置的小模型：它只认识形状、颜色和短单词。",
}

SMALL_TALK: tuple[tuple[Language, str, str], ...] = (
    ("en", "Hello", "Hello! Show me a picture with shapes or a short word."),
    ("en", "Hi", "Hello! Show me a picture with shapes or a short word."),
    ("en", "Who are you?", HONEST_ANSWER["en"]),
    ("en", "What can you do?", HONEST_ANSWER["en"]),
    ("en", "Help", HONEST_ANSWER["en"]),
    ("en", "Thank you", "You are welcome."),
    ("en", "Thanks", "You are welcome."),
    ("zh", "你好", "你好！请给我一张有图形或短单词的图片。"),
    ("zh", "你是谁？", HONEST_ANSWER["zh"]),
    ("zh", "你能做什么？", HONEST_ANSWER["zh"]),
    ("zh", "谢谢", "不客气。"),
)
OUT_OF_SCOPE: tuple[tuple[Language, str], ...] = tuple(
    [("en", text) for text in (
        "What is the capital of France?", "Write a poem about the sea.", "Who is this person?",
        "What is the weather like?", "How old is she?", "Translate this into German.",
        "Explain the chart.", "What brand is this car?", "Is this dish healthy?",
        "Tell me a joke.", "What is 12 times 7?", "Write a Python function.",
        "Which city is this?", "What breed is this dog?", "Summarize this document.",
        "How do I get to the station?", "Who won the game?", "What time is it?",
        "Is the man happy?", "What is the person wearing?", "What food is this?",
        "Where was this photo taken?", "How much does it cost?", "What animal is it?",
        "What do a soup and a coffee cost together?", "On which day did most visitors come?",
        "How many people are there?", "What is the total?", "What does the chart show?",
        "What is the meaning of life?", "Who painted this?", "Is it raining?",
    )]  # fmt: skip
    + [("zh", text) for text in (
        "法国的首都是哪里？", "写一首关于大海的诗。", "这个人是谁？", "今天天气怎么样？",
        "把它翻译成英文。", "解释这个图表。", "这是什么车？", "给我讲个笑话。", "这是哪座城市？",
        "这只狗是什么品种？", "总结这份文件。", "现在几点了？", "这是什么食物？", "这多少钱？",
        "汤和咖啡一共多少钱？", "哪一天的访客最多？", "图中有几个人？", "图表说明了什么？",
    )]  # fmt: skip
)  # fmt: skip
