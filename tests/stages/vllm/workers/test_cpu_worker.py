"""How a rank on a CPU waits beside other processes."""

import os
import threading

from omnistage.stages.vllm.workers.cpu_worker import NICENESS, give_way


def test_a_rank_gives_way_to_others_and_never_comes_before_where_it_was() -> None:
    found = []
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    low = max(ours, NICENESS) + 5

    def rank() -> None:
        for before in (ours, low):
            os.setpriority(os.PRIO_PROCESS, 0, before)
            give_way()
            found.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=rank)
    thread.start()
    thread.join()
    assert found == [max(ours, NICENESS), low]
    assert os.getpriority(os.PRIO_PROCESS, 0) == ours  # other threads stay as they were
