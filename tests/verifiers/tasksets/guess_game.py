"""An environment of verifiers with several turns and its own games: a user says where the hidden number lies."""

import random
import re

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]


class GameData(vf.TaskData):
    number: int


class GameTask(vf.Task[GameData, vf.State, vf.TaskConfig]):
    pass


class GameConfig(vf.TasksetConfig):
    largest: int = 9


class GameEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GameEnv(vf.Env[GameEnvConfig]):
    async def run(self, task, agents):
        reward = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            for _ in range(3):
                if segment.terminated:
                    break
                numbers = re.findall(r"\d+", segment.last_reply)
                if numbers and int(numbers[-1]) == task.data.number:
                    reward = 1.0
                    break
                if "raise" in segment.last_reply:
                    raise LookupError("no such move")
                where = "higher" if numbers and int(numbers[-1]) < task.data.number else "lower"
                segment = await interaction.turn(f"It is {where}.")
        interaction.trace.record_reward("found", reward, 1.0)


class GameTaskset(vf.Taskset[GameTask, GameConfig]):
    def load(self):
        for i in range(40):
            number = random.Random(i).randint(0, self.config.largest)
            prompt = f"Guess my number, from 0 to {self.config.largest}. Write the number only."
            yield GameTask(GameData(name=f"game-{i}", prompt=prompt, number=number), self.config.task)


__all__ = ["GameEnv", "GameTaskset"]
