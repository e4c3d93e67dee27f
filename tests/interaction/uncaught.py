"""A program as the tutorial has them, that ends without having finished; see test_uncaught.py."""

import os
import signal
import sys
from typing import Any

import anyio

backend, how = sys.argv[1:]


def press_ctrl_c(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


pressed: list[object] = []


def press_once(event: object) -> None:
    if not pressed:
        pressed.append(event)
        press_ctrl_c()


class PressesAt:
    """Presses Ctrl-C when a module is looked for, or fails as Python does when it came then."""

    def __init__(self, module: str, *, in_a_class: bool) -> None:
        self.module = module
        self.in_a_class = in_a_class

    def find_spec(self, name: str, *_: object) -> None:
        if name == self.module and self.in_a_class:
            raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()
        if name == self.module:
            press_ctrl_c()


if how in ("loading", "loading a class"):
    finder: Any = PressesAt("meup_agent.agent.agent", in_a_class=how == "loading a class")
    sys.meta_path.insert(0, finder)

from meup_agent import Agent, Settings  # noqa: E402
from meup_agent.errors import ConnectionFailed  # noqa: E402

agent = Agent("tools")


async def join() -> None:
    settings = Settings(first_welcome=None)
    if how == "connecting":
        agent.observe(press_once)
    async with agent.join(settings=settings):
        if how == "failing":
            raise LookupError("in the block")
        sys.stdout.write("in\n")
        await anyio.sleep_forever()


async def main() -> None:
    if how in ("grouped", "connecting"):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(join)
    elif how == "failing later":
        try:
            await join()
        except ConnectionFailed as error:
            raise LookupError("after the block") from error
    else:
        await join()


if __name__ == "__main__":
    try:
        anyio.run(main, backend=backend)
    except KeyboardInterrupt:
        if how != "catching":
            raise
        sys.stdout.write("bye\n")
