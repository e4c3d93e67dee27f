"""An echo bot in ten lines: it says again what others say."""

from meup_agent import Agent, Chat, Context

agent = Agent("echo")


@agent.on_chat
async def echo(chat: Chat, ctx: Context) -> None:
    if chat.about is None:  # an answer gets no answer, or two bots never stop
        await ctx.space.chat(chat.text, to=chat.sender, about=chat.id)


if __name__ == "__main__":
    agent.run()  # where to, and who: MEUP_URL, MEUP_SPACE, MEUP_TOKEN
