"""Several commands at a time: what becomes of those that end, fail, come too late or stand still."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
from processes import Command, run_all

RECIPES = Path(processes.__file__).parent
FOR_EVER = "def waits_for_ever():\n    import time\n    while True: time.sleep(1)\n"


def python(folder, name, code, **more):
    return Command(name, [sys.executable, "-u", "-X", "faulthandler", "-c", code], folder / f"{name}.log", **more)


def outcomes(*commands, jobs=2, **options):
    return [(one.command.name, one.words) for one in run_all([*commands], jobs, dict(os.environ), **options)]


def told(command):
    """Its first line, once it is there."""
    for _ in range(300):
        if command.log.exists() and "\n" in (text := command.log.read_text()):
            return text.splitlines()[0]
        time.sleep(0.1)
    raise AssertionError(f"{command.name} said nothing")


def is_there(pid):
    """And not only because nobody has asked how it ended."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pid):
    """Whether it is, in the end: to be killed takes its time."""
    began = time.monotonic()
    while is_there(pid) and time.monotonic() - began < 10:
        time.sleep(0.1)
    return not is_there(pid)


def test_they_run_at_a_time_and_each_has_its_log(tmp_path):
    """Each waits for the other, so that one at a time would never end."""
    code = "import pathlib, time\npathlib.Path({0!r}).touch()\nwhile not pathlib.Path({1!r}).exists(): time.sleep(0.1)"
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    first, second = python(tmp_path, "1", code.format(a, b)), python(tmp_path, "2", code.format(b, a) + "\nprint('x')")
    assert sorted(outcomes(first, second)) == [("1", "done"), ("2", "done")]
    assert (first.log.read_text(), second.log.read_text()) == ("", "x\n")


def test_one_that_fails_is_named_and_the_others_go_on(tmp_path):
    bad, good = python(tmp_path, "bad", "raise SystemExit('no luck')"), python(tmp_path, "good", "print(1)")
    assert outcomes(bad, good, jobs=1) == [("bad", f"failed: no luck ({bad.log})"), ("good", "done")]


def test_one_waits_for_what_it_needs_while_others_go_ahead(tmp_path):
    mark = tmp_path / "mark"
    needs = python(tmp_path, "needs", "print(1)", ready=mark.exists)
    makes = python(tmp_path, "makes", f"open({str(mark)!r}, 'w')")
    never = python(tmp_path, "never", "print(1)", ready=(tmp_path / "nothing").exists)
    assert outcomes(never, needs, makes) == [("makes", "done"), ("needs", "done")]


def test_nothing_is_begun_after_the_end(tmp_path):
    first, second = (python(tmp_path, name, "import time; time.sleep(1)") for name in "ab")
    assert outcomes(first, second, jobs=1, end=time.monotonic() + 0.5) == [("a", "done")]
    assert not second.log.exists()


def test_one_that_stands_still_is_begun_again_once_and_its_log_says_where_it_stood(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 5.0)
    mark = str(tmp_path / "mark")
    code = f"{FOR_EVER}import pathlib\nmark = pathlib.Path({mark!r})\nif not mark.exists():\n    mark.touch()\n"
    once = python(tmp_path, "once", f"{code}    waits_for_ever()\nprint('went on')")
    found = outcomes(once, patience=4.0)
    assert [what for _, what in found] == [f"stood still for 4 s and is begun again: {once.log} says where", "done"]
    assert "in waits_for_ever" in once.log.read_text() and once.log.read_text().endswith("went on\n")


def test_one_that_stands_still_too_late_or_twice_is_ended(tmp_path):
    always = python(tmp_path, "always", f"{FOR_EVER}waits_for_ever()")
    (late,) = run_all([always], 1, dict(os.environ), end=time.monotonic() + 0.8, patience=1.0)
    assert "was ended" in late.words and late.failed
    found = [*run_all([always], 1, dict(os.environ), patience=1.0)]
    assert [("again" in one.words, one.failed) for one in found] == [(True, False), (False, True)]


def test_one_that_is_begun_again_does_not_wait_for_a_place(tmp_path, monkeypatch):
    """At the end of the queue it could come too late, and nobody would say so."""
    monkeypatch.setattr(processes, "GRACE", 5.0)
    always = python(tmp_path, "always", f"{FOR_EVER}waits_for_ever()")
    others = [python(tmp_path, name, "import time; time.sleep(3)") for name in "abc"]
    said = outcomes(always, *others, jobs=1, patience=4.0, end=time.monotonic() + 8)
    assert [name for name, _ in said] == ["always", "always"] and "was ended" in said[1][1]


def test_a_second_ctrl_c_leaves_nothing_behind(tmp_path):
    deaf = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(os.getpid())\ntime.sleep(60)"
    one = python(tmp_path, "one", deaf)
    script = f"""
import os, sys
from pathlib import Path
from processes import Command, run_all
for _ in run_all([Command("one", {one.words!r}, Path({str(one.log)!r}))], 1, dict(os.environ)):
    pass
"""
    watching = subprocess.Popen(
        [sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": str(RECIPES)}, stderr=subprocess.DEVNULL
    )
    pid = int(told(one))
    for _ in range(2):
        watching.send_signal(signal.SIGINT)
        time.sleep(1)
    assert watching.wait(10) != 0
    assert gone(pid)


def test_where_its_memory_may_be_written_is_as_before(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_CORE)
    code = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    one = python(tmp_path, "one", code)
    assert outcomes(one) == [("one", "done")] and told(one) == "0"
    assert resource.getrlimit(resource.RLIMIT_CORE) == before


def test_one_that_writes_is_not_taken_for_standing_still(tmp_path):
    talking = python(tmp_path, "talking", "import time\nfor i in range(20): print(i); time.sleep(0.3)")
    assert outcomes(talking, patience=4.0) == [("talking", "done")]


def test_nothing_is_left_of_one_that_was_ended(tmp_path):
    words = f"[sys.executable, '-c', {FOR_EVER + 'waits_for_ever()'!r}]"
    begins = f"import subprocess, sys\nprint(subprocess.Popen({words}).pid)\n"
    stands = python(tmp_path, "stands", f"{FOR_EVER}{begins}waits_for_ever()")
    listening = run_all([stands], 1, dict(os.environ), patience=3.0)
    next(listening)
    assert gone(int(told(stands)))
    listening.close()


def test_they_save_and_leave_when_nobody_listens(tmp_path):
    trap = "import os, signal, sys, time\ndef leave(*_):\n    time.sleep(1); print('saved'); sys.exit()\n"
    long = python(tmp_path, "long", f"{trap}signal.signal({signal.SIGTERM}, leave)\nprint(os.getpid())\ntime.sleep(60)")
    quick = python(tmp_path, "quick", "print(1)", ready=lambda: bool(told(long)))
    listening = run_all([long, quick], 2, dict(os.environ))
    assert next(listening).command is quick and is_there(int(told(long)))
    listening.close()
    assert not is_there(int(told(long))) and long.log.read_text().endswith("saved\n")


def test_a_ctrl_c_is_for_whoever_watches(tmp_path):
    """It does not reach the commands by itself: a second one would end them before they have saved."""
    one = python(tmp_path, "one", "import os; print(os.getpid(), os.getpgid(0))")
    assert outcomes(one) == [("one", "done")]
    pid, group = told(one).split()
    assert pid == group != str(os.getpgid(0))


@pytest.mark.parametrize("jobs", [1, 3])
def test_never_more_than_were_asked_for(tmp_path, jobs):
    code = f"import os, time\nos.chdir({str(tmp_path)!r})\nmark = f'on-{{os.getpid()}}'\nopen(mark, 'w').close()\n"
    code += "time.sleep(0.5)\nprint(len([f for f in os.listdir() if f.startswith('on-')]))\nos.remove(mark)"
    several = [python(tmp_path, f"c{i}", code) for i in range(4)]
    outcomes(*several, jobs=jobs)
    assert max(int(told(one)) for one in several) <= jobs
