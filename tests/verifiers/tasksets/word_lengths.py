"""A taskset of verifiers that carries its own data: how many letters a word has, answered once."""

import re

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

WORDS = [
    "apple", "bread", "chair", "dance", "earth", "flute", "grape", "house", "india", "juice", "knife",
    "lemon", "mouse", "night", "ocean", "piano", "queen", "river", "snake", "table", "uncle", "voice",
    "water", "youth", "zebra", "ant", "bee", "cat", "dog", "elk", "fox", "goat", "hawk", "ibex", "jay",
    "kiwi", "lion", "mole", "newt", "owl", "pig", "quail", "rabbit", "spider", "turtle", "walrus", "badger",
    "beaver", "camel", "donkey", "ferret", "giraffe", "hamster", "leopard", "panther", "penguin", "sparrow",
]  # fmt: skip


class WordData(vf.TaskData):
    word: str


class WordTask(vf.Task[WordData, vf.State, vf.TaskConfig]):
    @vf.reward()
    async def right(self, trace: vf.Trace) -> float:
        numbers = re.findall(r"\d+", trace.last_reply)
        return float(bool(numbers) and int(numbers[-1]) == len(self.data.word))

    @vf.metric()
    async def numbers(self, trace: vf.Trace) -> float:
        return float(len(re.findall(r"\d+", trace.last_reply)))


class WordTaskset(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        for word in WORDS:
            prompt = f'How many letters has the word "{word}"? Answer with the number only.'
            yield WordTask(WordData(name=word, prompt=prompt, word=word), self.config.task)


__all__ = ["WordTaskset"]
