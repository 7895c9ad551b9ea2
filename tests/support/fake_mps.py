"""A stand-in for NVIDIA's nvidia-cuda-mps-control that notes what it is told."""

from pathlib import Path

import psutil

from omnistage.server.runtime.mps_daemon import PIPES, PROCESS_NAME
from omnistage.stage_configs.mps import CONTROL

# As NVIDIA's own: -d starts a daemon, a command comes on standard input, and without a daemon
# below the pipe directory the answer is an error. A daemon serves while its file is there.
SCRIPT = """\
#!/bin/sh
note() { echo "$*" >> "$(dirname "$0")/told"; }
pipes=${CUDA_MPS_PIPE_DIRECTORY:-/nowhere}
case $1 in
-d)
    note "-d pipes=$pipes logs=$CUDA_MPS_LOG_DIRECTORY gpus=${CUDA_VISIBLE_DEVICES-all}"
    BEFORE_START
    touch "$pipes/control"
    "$0" --daemon > /dev/null 2>&1 < /dev/null &
    exit 0;;
--daemon)
    while [ -e "$pipes/control" ]; do sleep 0.02; done
    AFTER_QUIT
    exit 0;;
esac
read -r command
note "$command pipes=$pipes"
[ -e "$pipes/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
case $command in
get_default_active_thread_percentage) echo 100.0;;
quit) rm "$pipes/control";;
esac
"""


class FakeMps:
    """The program in a folder for the PATH, and its daemons."""

    def __init__(self, folder: Path, before_start: str = ":", after_quit: str = ":") -> None:
        folder.mkdir()
        self.folder = folder
        text = SCRIPT.replace("BEFORE_START", before_start).replace("AFTER_QUIT", after_quit)
        (folder / CONTROL).write_text(text)
        (folder / CONTROL).chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH with this program."""
        return f"{self.folder}:/usr/bin:/bin"

    @property
    def told(self) -> list[str]:
        """What the program was started with or asked, line by line."""
        notes = self.folder / "told"
        return notes.read_text().splitlines() if notes.exists() else []

    def daemons(self) -> list[int]:
        """The daemons of this program that run."""
        return [one.pid for one in psutil.process_iter() if self._is_daemon(one)]

    def _is_daemon(self, process: psutil.Process) -> bool:
        try:
            command = process.cmdline()
            is_ours = str(self.folder / CONTROL) in command and "--daemon" in command
            return (
                is_ours and process.name().startswith(PROCESS_NAME) and PIPES in process.environ()
            )
        except psutil.Error:
            return False
