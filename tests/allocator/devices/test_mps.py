"""The MPS daemon of a slice, with a program in the place of nvidia-cuda-mps-control."""

import os
import stat
import sys
from pathlib import Path

import pytest

from shunter.allocator.devices import mps
from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.mps import BackOff, MpsDaemon, MpsHealth, MpsKeeper

DEVICE = "MIG-11111111-2222-3333-4444-555555555555"

PROGRAM = """#!{python}
import os, socket, sys
pipes = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
address, pid_file = pipes + "/control", pipes + "/nvidia-cuda-mps-control.pid"
if os.environ.get("FAKE_REFUSES"):
    sys.exit("Failed to create the daemon: the device is in exclusive mode")
if "-d" in sys.argv:
    if os.path.exists(address):
        os.unlink(address)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    if os.fork():
        sys.exit(0)
    os.setsid()
    for number in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    open(pid_file, "w").write(str(os.getpid()))
    log = open(os.environ["CUDA_MPS_LOG_DIRECTORY"] + "/control.log", "a", buffering=1)
    log.write("device " + os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
    while True:
        taken, _ = listener.accept()
        with taken:
            command = taken.makefile().readline().strip()
            log.write(command + "\\n")
            hung = pipes + "/hang"
            if os.path.exists(hung) and open(hung).read() == str(os.getpid()):
                continue
            if not command:  # who asked was ended before
                continue
            word = command.split()[0]
            fault = os.path.exists(pipes + "/fault")
            answers = {{
                "get_server_list": "31\\n32\\n",
                "get_server_status": "FAULT\\n" if fault else "ACTIVE\\n",
                "get_client_list": command.split()[-1] + "7\\n",
            }}
            taken.sendall(("ok\\n" + answers.get(word, "")).encode())
            if word == "quit":
                os.unlink(pid_file)
                os._exit(0)
else:
    asked = socket.socket(socket.AF_UNIX)
    try:
        asked.connect(address)
    except OSError:
        sys.exit("Cannot find MPS control daemon process")
    asked.sendall(sys.stdin.readline().encode())
    asked.shutdown(socket.SHUT_WR)
    answer = asked.makefile().read()
    if not answer:
        import time
        time.sleep(3600)
    sys.stdout.write(answer.removeprefix("ok\\n"))
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "bin" / mps.PROGRAM
    path.parent.mkdir()
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.fixture
def daemon(tmp_path, program, monkeypatch):
    monkeypatch.setattr(mps, "ANSWER_S", 60.0)
    # A socket's path is short.
    found = MpsDaemon(DEVICE, Path(os.path.relpath(tmp_path)) / "mps", program=program)
    if len(str(tmp_path)) < 80:
        found = MpsDaemon(DEVICE, tmp_path / "mps", program=program)
    yield found
    found.end()


def log(tmp_path):
    return (tmp_path / "mps" / "log" / "control.log").read_text().splitlines()


def test_a_daemon_serves_one_device_until_it_is_stopped(daemon, tmp_path):
    assert daemon.health() is MpsHealth.GONE
    daemon.start()
    assert daemon.health() is MpsHealth.SERVES
    assert log(tmp_path)[0] == f"device {DEVICE}"
    assert (daemon.servers(), daemon.clients()) == ((31, 32), (317, 327))
    daemon.stop()
    assert daemon.health() is MpsHealth.GONE
    daemon.stop()  # once more does no harm


def test_the_next_controller_finds_the_daemon_that_runs(daemon, program, tmp_path):
    daemon.start()
    pid = daemon._pid()
    again = MpsDaemon(DEVICE, daemon._folder, program=program)
    again.start()
    assert again._pid() == pid


def test_a_share_is_set_for_every_server_and_those_to_come(daemon, tmp_path):
    daemon.start()
    daemon.set_share(42.5)
    assert [line for line in log(tmp_path) if "percentage" in line] == [
        "set_default_active_thread_percentage 42.5",
        "set_active_thread_percentage 31 42.5",
        "set_active_thread_percentage 32 42.5",
    ]


@pytest.mark.parametrize("percent", [0, -1, 100.5])
def test_a_share_that_cannot_be_is_refused(daemon, percent):
    with pytest.raises(DeviceError, match="above 0, at most 100"):
        daemon.set_share(percent)
    with pytest.raises(DeviceError, match="above 0, at most 100"):
        daemon.client_environ(percent)


def test_clients_are_told_by_their_environment(daemon):
    found = daemon.client_environ(30, 5 << 30)
    assert found["CUDA_VISIBLE_DEVICES"] == DEVICE
    assert found["CUDA_MPS_PIPE_DIRECTORY"].endswith("mps/pipe")
    assert found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=5120M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in daemon.client_environ()


def test_a_daemon_that_hangs_is_seen_and_started_anew(daemon, monkeypatch):
    daemon.start()
    hung = daemon._pid()
    (daemon._pipes / "hang").write_text(str(hung))
    monkeypatch.setattr(mps, "ANSWER_S", 0.5)
    assert daemon.health() is MpsHealth.HUNG
    monkeypatch.setattr(mps, "ANSWER_S", 60.0)
    assert MpsKeeper(daemon).check(0.0) is MpsHealth.SERVES
    assert daemon._pid() != hung


def test_a_fault_of_a_client_is_told(daemon):
    daemon.start()
    (daemon._pipes / "fault").write_text("")
    assert daemon.health() is MpsHealth.FAULTED
    assert MpsKeeper(daemon).check(0.0) is MpsHealth.FAULTED


def test_a_daemon_that_does_not_start_says_why(tmp_path, program):
    refusing = MpsDaemon(
        DEVICE, tmp_path / "m", program=program, environ={**os.environ, "FAKE_REFUSES": "1"}
    )
    with pytest.raises(DeviceError, match="refuses 'start': Failed to create the daemon"):
        refusing.start()
    missing = MpsDaemon(DEVICE, tmp_path / "m", program=str(tmp_path / "nothing"))
    with pytest.raises(DeviceError, match="it comes with NVIDIA's driver"):
        missing.start()


def test_a_number_that_is_another_process_by_now_is_not_killed(daemon):
    daemon._pipes.mkdir(parents=True)
    (daemon._pipes / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    assert daemon.health() is MpsHealth.GONE
    daemon.end()


def test_a_folder_that_is_too_deep_for_sockets_is_refused():
    with pytest.raises(DeviceError, match="too long for a socket"):
        MpsDaemon(DEVICE, Path("/" + "x" * 120))


# ---- starting again


class Patient:
    """A daemon that fails for a while."""

    def __init__(self, failures):
        self.failures, self.starts, self.state = failures, 0, MpsHealth.GONE

    def health(self):
        return self.state

    def start(self):
        self.starts += 1
        if self.starts <= self.failures:
            raise DeviceError("no")
        self.state = MpsHealth.SERVES


def test_one_that_ends_is_started_again_ever_more_slowly():
    daemon = Patient(failures=3)
    keeper = MpsKeeper(daemon, BackOff(first_s=1, most_s=60))
    at = []
    for now in range(20):
        before = daemon.starts
        keeper.check(now)
        at += [now] if daemon.starts > before else []
        if daemon.starts <= 3:
            assert keeper.problem == "no"
    assert at == [0, 1, 3, 7]
    assert (keeper.problem, keeper.restarts) == ("", 4)


def test_the_pause_is_bounded_and_forgotten_when_all_is_well():
    back_off = BackOff(first_s=1, most_s=8)
    for now in (0, 10, 20, 30, 40):
        back_off.failed(now)
    assert back_off.next_s == 48
    back_off.was_well(50)
    assert back_off.failures == 5
    back_off.was_well(56)
    assert back_off.failures == 0


def test_what_has_failed_for_weeks_is_still_tried():
    back_off = BackOff(failures=5000)
    back_off.failed(0)
    assert back_off.next_s == 60
