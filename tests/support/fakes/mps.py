"""A stand-in for NVIDIA's nvidia-cuda-mps-control that notes what it is told."""

from pathlib import Path

import psutil

from omnistage.server.runtime.processes.mps_daemon import PIPES, PROCESS_NAME
from omnistage.stage_configs.rules.mps import CONTROL

# As NVIDIA's own: -d starts a daemon, a command comes on standard input, and without a daemon
# below the pipe directory the answer is an error. A daemon serves while its file is there; one that
# is deaf has none.
SCRIPT = """\
#!/bin/sh
note() { echo "$*" >> "$(dirname "$0")/told"; }
pipes=${CUDA_MPS_PIPE_DIRECTORY:-/nowhere}
case $1 in
-d)
    note "-d pipes=$pipes logs=$CUDA_MPS_LOG_DIRECTORY gpus=${CUDA_VISIBLE_DEVICES-all}"
    BEFORE_START
    "$0" --daemon > /dev/null 2>&1 < /dev/null &
    while [ ! -e "$pipes/control" ]; do sleep 0.01; done
    exit 0;;
--deaf)
    while true; do sleep 0.02; done;;
--daemon)
    touch "$pipes/control"
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
        """The daemons of this program that run, without what they are just about to start."""
        found = {one.pid: one for one in psutil.process_iter() if self._is_daemon(one)}
        return [pid for pid, one in found.items() if parent_of(one) not in found]

    def _is_daemon(self, process: psutil.Process) -> bool:
        try:
            command = process.cmdline()
            is_ours = str(self.folder / CONTROL) in command and PIPES in process.environ()
            is_daemon = "--daemon" in command or "--deaf" in command
            return is_ours and is_daemon and process.name().startswith(PROCESS_NAME)
        except psutil.Error:
            return False


def parent_of(process: psutil.Process) -> int:
    """The id of its parent, or 0 if it has just ended."""
    try:
        return process.ppid()
    except psutil.Error:
        return 0
