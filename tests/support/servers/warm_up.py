"""What a server of the tiny Qwen3-Omni is asked before its descriptors are counted."""

from support.api.prompts import (
    image_part,
    picture,
    sound,
    sound_part,
    text,
    video_bytes,
    video_part,
)
from support.faults.chaos import ready_again
from support.servers.server import TinyServer


async def warm_up(server: TinyServer) -> None:
    """Ask with every medium once: what a process opens for its whole life is open then."""
    parts = [
        image_part(picture(64, 64, seed=9)),
        sound_part(sound(4800)),
        video_part(video_bytes(num_frames=2, size=32)),
    ]
    for part in parts:
        await server.ask([{"role": "user", "content": [part, text("What?")]}])
    server.warm = server.generations()


async def warm_up_again(server: TinyServer) -> None:
    """If a stage has started again since: it has not yet opened what it opens for its life."""
    if not server.is_killed and server.warm not in (None, server.generations()):
        await ready_again(server)
        await warm_up(server)
