"""Runs docs/integrations.md's snippets of LangChain and LiteLLM: `make integrations`.

The packages are in an environment of their own, whose Python is --python. The server has fake
stages and says "Hello there".
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

from support.gateway.serving import OMNI, running_gateway
from support.repository.snippets import SERVER

PAGE = (Path(__file__).parent.parent / "docs" / "integrations.md").read_text(encoding="utf-8")
NAMES = {"served_model_name": ["omni", "tts-1", "whisper-1"], "voice_aliases": {"alloy": "ethan"}}
# What a client of LiteLLM's proxy causes, by the proxy's own router.
LITELLM = """
import sys, yaml
from litellm import Router

router = Router(**yaml.safe_load(sys.stdin.read()))
answer = router.completion("omni", messages=[{"role": "user", "content": "Say hello."}])
print(answer.choices[0].message.content)
import asyncio
sound = asyncio.run(router.aspeech(model="tts-1", input="Hello there.", voice="alloy"))
assert len(sound.content) > 100
print("speech")
"""


def block(title: str, language: str) -> str:
    """Return the one block of a language in a section of the page."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(found)


def run(python: Path, program: str, given: str, wanted: str) -> None:
    """Run a program with the other environment's Python; it must print what is wanted."""
    done = subprocess.run(
        [str(python), "-c", program], input=given, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == wanted, done.stdout


def main() -> None:
    """Run each snippet against a server of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", type=Path, required=True)
    python = parser.parse_args().python
    with (
        tempfile.TemporaryDirectory() as folder,
        running_gateway(Path(folder), {**OMNI, **NAMES}) as gateway,
    ):
        langchain = block("LangChain", "python").replace(SERVER, gateway.url)
        run(python, langchain, "", "Hello there\nHello there\n")
        print("ok: LangChain", flush=True)  # noqa: T201
        config = block("LiteLLM", "yaml").replace(SERVER, gateway.url)
        run(python, LITELLM, config, "Hello there\nspeech\n")
        print("ok: LiteLLM", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
