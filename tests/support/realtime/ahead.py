"""A session that answers ahead, and what it counts."""

import re
from collections import Counter

import httpx
import numpy as np
from support.gateway.serving import RunningGateway
from support.realtime.client import Talk, silence, tone
from support.waiting import wait_until

COUNTS = re.compile(r"^(omnistage_\w+_total)\{(.*)\} (\S+)$", re.MULTILINE)
SPEECH = np.concatenate([silence(0.5), tone(0.4)])
PAUSE = silence(0.25)  # which is 100 ms and less than 500
ENDING = silence(0.5)


def counts(gateway: RunningGateway) -> Counter[str]:
    """What the gateway has counted of requests, by name and labels."""
    page = httpx.get(f"{gateway.url}/metrics").text
    return Counter(
        {
            f"{name}{{{labels}}}": int(float(value))
            for name, labels, value in COUNTS.findall(page)
            if not name.startswith(("omnistage_channel", "omnistage_stage"))
        }
    )


def ahead(counted: Counter[str]) -> dict[str, int]:
    """How many answers were made ahead, by what became of them."""
    name = "omnistage_realtime_ahead_total"
    found = {
        outcome: counted[f'{name}{{outcome="{outcome}"}}']
        for outcome in ("used", "cancelled", "failed")
    }
    return {outcome: count for outcome, count in found.items() if count}


def num_opened(gateway: RunningGateway) -> int:
    """How many requests the thinker got, but for histories that are read ahead."""
    opened = gateway.stages.stages["thinker"].opened
    return gateway.do(lambda: sum(not one.message.keeps_rows for one in opened))


def pause(talk: Talk, gateway: RunningGateway) -> None:
    """Speak and pause; an answer is under way then."""
    before = num_opened(gateway)
    talk.append(SPEECH)
    talk.append(PAUSE)
    talk.until("input_audio_buffer.speech_started")
    wait_until(lambda: num_opened(gateway) == before + 1)
