import contextlib
import fcntl
import hashlib
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest

from shunter.allocator.planning.configuration import MAX_GROUPS, InstanceGroup
from shunter.batching.page.control_page import ControlPage, UnstableError
from shunter.batching.page.layout import (
    GROUP_COUNT,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
    Claims,
    Order,
)
from shunter.plugins.control import controller, controller_agent
from shunter.plugins.control.controller import EXIT_NO_PAGE, EXIT_NOT_ALONE, ControllerAgent
from shunter.plugins.control.observed import GroupShare, Wanted
from shunter.plugins.control.settings import Settings, SettingsError, load

PATIENCE_S = 300


@pytest.fixture
def page(tmp_path):
    with ControlPage.create(
        tmp_path / "control", owner_pid=os.getpid(), created_unix_ns=1, now_ns=1
    ) as page:
        yield page


@pytest.fixture
def poke(page):
    """Writes a word of a slot as the server would."""

    def poke(slot, name, value):
        page.words[(SLOTS_OFFSET + slot * SLOT_SIZE + SLOT_FIELDS[name].offset) // 8] = value

    return poke


@pytest.fixture
def add_model(poke):
    """Describes a model in a slot; a higher generation describes its next one."""

    def add_model(slot, name=b"resnet", generation=1, groups=1, max_wait_us=5000):
        poke(slot, "slot_sequence", 2 * generation - 1)
        poke(slot, "slot_state", 1)
        poke(slot, "generation", generation)
        poke(slot, "group_count", groups)
        poke(slot, "registered_max_wait_us", max_wait_us)
        poke(slot, "model_name", int.from_bytes(name, "little"))
        poke(slot, "slot_sequence", 2 * generation)

    return add_model


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "shunter.toml"
    path.write_text("")
    return path


@pytest.fixture
def agent(page, config):
    return ControllerAgent(page, lambda: load(config), 77)


def test_without_models_there_is_nothing_to_do(agent, page):
    assert agent.do_work(10) == 0
    assert agent.do_work(20) == 0
    header = page.header()
    assert header.controller_pid == 77
    assert header.controller_cycles == 2
    assert header.controller_heartbeat_ns == 20


def test_turns_bounds_and_masks_are_the_settings(agent, page, config, add_model, poke):
    add_model(0)
    poke(0, "group_yields", 1)
    config.write_text('[preemption]\nstrict = "edf"\nlongest_park_ms = 50\npadding = "always"\n')
    agent.reload()
    agent.do_work(1)
    header = page.header()
    assert (header.strict_order, header.best_effort_order) == (Order.EDF, Order.ROUND_ROBIN)
    assert (header.max_hold_us, header.longest_park_us) == (2_000_000, 50_000)
    assert page.read_padding(0) == (1 << 128) - 1


def test_memory_is_wanted_while_less_is_there_than_the_floor(agent, page, config, monkeypatch):
    config.write_text("[preemption]\nmemory_floor_mb = 100\n")
    agent.reload()
    for available_mb, wanted in ((99, 1), (100, 0)):
        monkeypatch.setattr(controller_agent, "available_bytes", lambda mb=available_mb: mb << 20)
        agent.do_work(1)
        assert page.header().memory_wanted == wanted


def test_an_error_about_who_runs_beside_whom_stops_nothing_else(
    agent, page, add_model, monkeypatch, caplog
):
    def fail(*_):
        raise OverflowError("no mask")

    monkeypatch.setattr(agent._padding, "do_work", fail)
    add_model(0)
    for cycle in (1, 2):
        agent.do_work(cycle)
    assert page.read_commands(0) is not None
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.getMessage() == "who may run beside whom is left as it is: no mask"


def test_settings_that_cannot_be_read_leave_turns_and_masks_as_they_are(page, add_model, poke):
    add_model(0)
    poke(0, "group_yields", 1)
    page.write_turns(Order.FIFO, Order.CONCURRENT, True)
    page.write_padding(0, 5)

    def fail():
        raise SettingsError("bad")

    ControllerAgent(page, fail, 77).do_work(1)
    assert (page.header().strict_order, page.header().exclusive) == (Order.FIFO, 1)
    assert page.read_padding(0) == 5


def test_what_groups_get_of_each_class_is_on_the_page_as_soon_as_it_changes(
    agent, page, add_model, monkeypatch
):
    add_model(0, groups=2)
    first = (GroupShare((0, 1), (1000, 1)), GroupShare((1, 0), (667, 1000)))
    for shares in ((), first, first, first[::-1], ()):
        monkeypatch.setattr(agent._reconfiguration, "shares", lambda slot, now=shares: now)
        agent.do_work(1)
        found = [GroupShare(g.preference, g.weight_milli) for g in page.read_commands(0).groups[:2]]
        assert tuple(found) == (shares or (GroupShare(), GroupShare()))
    assert agent.do_work(1) == 0


def _claims(page, slot):
    at = SLOTS_OFFSET + slot * SLOT_SIZE + SLOT_FIELDS["strict_claims"].offset
    return page.words[at // 8]


def test_who_may_claim_to_be_strict_is_on_the_page(agent, page, config, add_model, tmp_path):
    add_model(0, b"resnet")
    add_model(1, b"other")
    agent.do_work(1)
    assert [_claims(page, slot) for slot in (0, 1, 2)] == [Claims.ALL, Claims.ALL, 0]
    secret = tmp_path / "secret"
    secret.write_text("sesame")
    secret.chmod(0o600)
    lines = f'allow_strict = ["resnet"]\nstrict_secret_file = "{secret}"\n'
    config.write_text("[classes]\n" + lines)
    assert agent.reload()
    agent.do_work(2)
    assert [_claims(page, slot) for slot in (0, 1)] == [Claims.WITH_KEY, Claims.NONE]
    words = b"".join(word.to_bytes(8, "little", signed=True) for word in page.header().strict_key)
    assert words == hashlib.sha256(b"sesame").digest()
    secret.chmod(0o644)  # what was read stays in force
    config.write_text(f'[classes]\nstrict_secret_file = "{secret}"\n')
    assert not agent.reload()
    agent.do_work(3)
    assert [_claims(page, slot) for slot in (0, 1)] == [Claims.WITH_KEY, Claims.NONE]


def test_before_settings_were_read_nobody_knows_who_may_claim_to_be_strict(page, add_model):
    def fail():
        raise SettingsError("bad")

    add_model(0)
    ControllerAgent(page, fail, 77).do_work(1)
    assert _claims(page, 0) == Claims.UNKNOWN


def test_a_new_slot_gets_its_commands_once(agent, page, add_model):
    add_model(0)
    add_model(9, b"bert")
    assert agent.do_work(1) == 2
    assert agent.do_work(2) == 0
    assert page.read_commands(0).slot.max_wait_us == 5000
    assert page.read_commands(9).slot.alpha_millionths == 500_000
    assert page.read_commands(1) is None


def test_a_new_generation_and_a_new_group_get_commands_again(agent, add_model, poke):
    add_model(0)
    assert agent.do_work(1) == 1
    add_model(0, generation=2)
    assert agent.do_work(2) == 1
    add_model(0, generation=2, groups=2)
    poke(0, "slot_sequence", 6)
    assert agent.do_work(3) == 1
    assert agent.do_work(4) == 0


def test_a_change_of_identity_that_commands_nothing_new_is_left_alone(agent, page, add_model, poke):
    add_model(0)
    agent.do_work(1)
    poke(0, "queue_capacity", 5)
    poke(0, "slot_sequence", 4)
    assert agent.do_work(2) == 0
    assert page.command_sequence(0) == 2


def test_a_change_of_the_registered_wait_changes_the_commands(agent, page, add_model, poke):
    add_model(0)
    agent.do_work(1)
    poke(0, "registered_max_wait_us", 3000)
    poke(0, "slot_sequence", 4)
    assert agent.do_work(2) == 1
    assert page.read_commands(0).slot.max_wait_us == 3000


def test_a_slot_that_another_model_took_over_gets_commands(agent, add_model, poke):
    add_model(0)
    agent.do_work(1)
    poke(0, "slot_state", 0)
    assert agent.do_work(2) == 0
    add_model(0, b"bert")
    assert agent.do_work(3) == 1


def test_what_another_controller_wrote_is_written_again(agent, page, config, add_model):
    add_model(0)
    agent.do_work(1)
    successor = ControllerAgent(page, lambda: load(config), 78)
    assert successor.do_work(2) == 1
    assert successor.do_work(3) == 0
    assert agent.do_work(4) == 1


def test_a_number_that_is_too_long_to_be_shown_leaves_the_settings_as_they_are(
    agent, config, caplog
):
    config.write_text("[batching]\nthreshold_cap = 0x" + "f" * 10_000)
    assert not agent.reload()
    assert "the last good settings stay in force" in caplog.text


def test_a_reload_rewrites_only_what_changed(agent, config, page, add_model):
    add_model(0)
    add_model(1, b"bert")
    agent.do_work(1)
    config.write_text("[models.bert]\nmax_wait_ms = 2\n")
    assert agent.do_work(2) == 0
    assert agent.reload()
    assert agent.do_work(3) == 1
    assert page.read_commands(0).slot.max_wait_us == 5000
    assert page.read_commands(1).slot.max_wait_us == 2000


def test_a_bad_file_is_one_log_line_and_the_last_good_numbers_stay(
    agent, config, page, add_model, caplog
):
    config.write_text("[batching]\nalpha = 0.25\n")
    assert agent.reload()
    config.write_text("[batching]\nalpha = 0.75\nmax_wait_ms = -1\n")
    assert not agent.reload()
    add_model(0)
    agent.do_work(1)
    assert page.read_commands(0).slot.alpha_millionths == 250_000
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert "batching.max_wait_ms = -1 is not allowed" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_whether_the_settings_are_valid_stands_on_the_page(agent, config, page):
    assert page.header().settings_invalid == 0
    config.write_text("[batching]\nalpha = 7\n")
    assert not agent.reload()
    assert page.header().settings_invalid == 1
    config.write_text("")
    assert agent.reload()
    assert page.header().settings_invalid == 0


def test_settings_for_a_model_that_nobody_registered_are_told_once(
    agent, config, add_model, caplog
):
    def said():
        return [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]

    config.write_text("[models.resnet]\n[models.nosuch]\n")
    agent.reload()
    agent.do_work(1)
    add_model(0)
    for second in range(0, 50, 10):
        agent.do_work(second * 10**9 + 1)
    assert said() == []  # models may still be on their way
    for second in range(60, 200, 10):
        agent.do_work(second * 10**9 + 1)
    assert said() == ["[models.nosuch] in the settings: no such model is served"]
    agent.reload()
    for second in range(200, 400, 10):
        agent.do_work(second * 10**9)
    assert len(said()) == 2


def test_whether_a_front_end_is_wanted_stands_on_the_page(agent, config, page):
    def wanted():
        agent.do_work(1)
        return page.header().front_end_wanted

    assert wanted() == 0
    config.write_text("[nic]\nenabled = true")
    assert agent.reload()
    first = wanted()
    config.write_text("[nic]\nenabled = true\nport = 9000")
    assert agent.reload()
    assert 0 != first != wanted() != 0
    second = wanted()
    config.write_text("[nic]\nport = -1")
    assert not agent.reload()
    assert wanted() == second
    config.write_text("")
    assert agent.reload()
    assert wanted() == 0


def test_a_file_that_is_bad_from_the_start_means_the_defaults(page, add_model, caplog):
    def fail():
        raise SettingsError("no good")

    agent = ControllerAgent(page, fail, 77)
    assert agent.settings == Settings()
    assert "no good" in caplog.text
    add_model(0)
    assert agent.do_work(1) == 1


def test_a_new_controller_with_a_bad_file_leaves_the_front_end(page, config):
    config.write_text("[nic]\nenabled = true")
    ControllerAgent(page, lambda: load(config), 1).do_work(1)
    wanted = page.header().front_end_wanted
    config.write_text("[nic]\nenabled = 3")
    ControllerAgent(page, lambda: load(config), 2).do_work(2)
    assert page.header().front_end_wanted == wanted != 0


def test_a_new_controller_with_a_bad_file_leaves_the_numbers_of_the_one_before(
    agent, page, config, add_model
):
    config.write_text("[batching]\nageing_ms = 7\n")
    add_model(0)
    agent.reload()
    agent.do_work(1)
    config.write_text("[batching]\nageing_ms = nonsense\n")
    after = ControllerAgent(page, lambda: load(config), pid=2)
    assert after.do_work(2) == 0
    assert page.read_commands(0).slot.ageing_us == 7000
    add_model(1)
    assert after.do_work(3) == 1


def test_a_broken_slot_does_not_stop_the_others_and_is_named_once(
    agent, page, add_model, poke, caplog
):
    add_model(0)
    poke(0, "slot_sequence", 7)
    add_model(1)
    assert agent.do_work(1) == 1
    for now in (2, 3, 4):
        assert agent.do_work(now) == 0
    errors = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert errors[0].startswith("slot 0 is left as it is: slot 0: slot_sequence 7")
    poke(0, "slot_sequence", 8)
    assert agent.do_work(5) == 1
    assert page.read_commands(0) is not None


def test_lists_that_leave_a_class_without_a_group_are_left_out_and_named_once(
    agent, page, config, add_model, poke, caplog, monkeypatch
):
    wanted = Wanted(3, (InstanceGroup(1, 2, 8),), True)
    monkeypatch.setattr(controller_agent.Reconfiguration, "wanted", lambda self, slot: wanted)
    lists = "weights = { strict = [0, 1], best_effort = [0.5] }\ncaps = [4]\n"
    config.write_text(f"[models.resnet]\nthreshold = 4\n{lists}")
    agent.reload()
    add_model(0)
    add_model(1, b"bert")
    assert agent.do_work(1) == 2
    for sequence in (4, 6):
        poke(0, "slot_sequence", sequence)
        assert agent.do_work(sequence) == 0
    found = page.read_commands(0)
    assert (found.slot.threshold_fixed_milli, found.slot.wanted_request) == (4000, 3)
    assert (found.groups[0].weight_milli, found.groups[0].command_cap) == ((1000, 1000), 0)
    assert found.groups[0].wanted_threads == 2
    (error,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert error.startswith("models.resnet.weights.strict is 0 for all 1 worker groups")
    # With a second group they are in force.
    add_model(0, generation=4, groups=2)
    assert agent.do_work(7) == 1
    groups = page.read_commands(0).groups
    assert [group.weight_milli for group in groups[:2]] == [(0, 500), (1000, 1000)]


def test_a_model_with_lists_by_worker_group_keeps_its_configuration(
    agent, config, add_model, poke, caplog, monkeypatch
):
    monkeypatch.setattr(controller_agent.ProfileStore, "of", lambda self, archive: object())
    caplog.set_level(logging.INFO)
    config.write_text("[models.resnet]\ncaps = [4]\n")
    agent.reload()
    add_model(0)
    poke(0, "auto", 1)
    poke(0, "registered_batch_size", 8)
    for now in (1, 2, 3):
        agent.do_work(now)
    told = [r.getMessage() for r in caplog.records if "configuration" in r.getMessage()]
    assert told == ["resnet/ keeps its configuration: lists by worker group in shunter.toml"]


# ---- as a process


class Process:
    """A controller with a timer that kills it, so that no test can hang."""

    def __init__(self, *command, cwd):
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
        )
        self.timer = threading.Timer(PATIENCE_S, self.process.kill)
        self.timer.start()
        self.lines = []

    def wait_for(self, text, stream="stderr"):
        for line in getattr(self.process, stream):
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} was not said: {self.lines}")

    def end(self):
        """Close its input, wait, return the exit status."""
        with self.process, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
            self.lines += self.process.stderr.readlines()
        self.timer.cancel()
        return self.process.returncode


@pytest.fixture
def start(tmp_path, page, monkeypatch):
    """Starts a controller on the page."""
    monkeypatch.delenv("SHUNTER_CONFIG", raising=False)
    monkeypatch.delenv("SHUNTER_WEIGHTS", raising=False)
    started = []

    def start(*options, command=("-m", "shunter.plugins.control.controller")):
        process = Process(*command, "--page", str(tmp_path / "control"), *options, cwd=tmp_path)
        started.append(process)
        return process

    yield start
    for process in started:
        process.process.kill()
        if not process.process.stderr.closed:
            process.end()


def test_it_ends_when_the_server_closes_its_input(start, page, add_model):
    add_model(0)
    process = start()
    process.wait_for("slot 0: commands for resnet")
    assert process.end() == 0
    assert "the server closed its end" in process.lines[-1]
    assert page.read_commands(0).slot.max_wait_us == 5000
    assert page.header().controller_pid == process.process.pid


def test_weights_that_no_worker_maps_are_swept_and_it_ends_when_the_server_is_dead(
    start, page, tmp_path
):
    (tmp_path / "weights").mkdir()
    used, unused = (tmp_path / f"weights/{each * 64}.safetensors" for each in "ab")
    unused.touch()
    used.touch()
    held = os.open(used, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    page.words[48 // 8] = gone.pid
    process = start()
    process.wait_for(f"the server, process {gone.pid}, is gone")
    assert process.process.wait() == 0
    assert (used.exists(), unused.exists()) == (True, False)
    os.close(held)


def test_a_folder_of_weights_that_cannot_be_read_is_said_once_and_ends_nothing(
    start, page, add_model, tmp_path, monkeypatch, caplog
):
    add_model(0)
    (tmp_path / "weights").write_text("a file, not a folder")
    process = start()
    process.wait_for("files of weights are not swept")
    process.process.send_signal(signal.SIGHUP)
    process.wait_for("settings were read again")
    assert process.end() == 0
    monkeypatch.setattr(controller, "SWEEP_S", 0.0)
    sweeping = controller._Sweeping(tmp_path / "weights")
    with caplog.at_level("WARNING"):
        sweeping.look()
        sweeping.look()
    assert len([each for each in caplog.messages if "are not swept" in each]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(start, add_model, number):
    add_model(0)
    process = start()
    process.wait_for("slot 0")
    process.process.send_signal(number)
    process.wait_for("told to end")
    assert process.end() == 0


def test_a_signal_makes_it_read_the_settings_again(start, page, add_model, tmp_path):
    add_model(0)
    process = start("--directory", str(tmp_path))
    process.wait_for("slot 0: commands")
    (tmp_path / "shunter.toml").write_text("[batching]\nmax_wait_ms = nonsense\n")
    process.process.send_signal(signal.SIGHUP)
    process.wait_for("is not TOML")
    (tmp_path / "shunter.toml").write_text("[batching]\nmax_wait_ms = 1\n")
    process.process.send_signal(signal.SIGHUP)
    process.wait_for("settings were read again")
    process.wait_for("slot 0: commands")
    assert process.end() == 0
    assert page.read_commands(0).slot.max_wait_us == 1000


def test_once_means_one_cycle(start, page, add_model, config):
    add_model(0)
    config.write_text("[batching]\nthreshold = 4\n")
    process = start("--once", "--config", str(config))
    assert process.end() == 0
    assert page.read_commands(0).slot.threshold_fixed_milli == 4000
    assert page.header().controller_cycles == 1


def test_a_bad_config_does_not_stop_it(start, page, add_model):
    add_model(0)
    process = start("--once", "--config", "missing.toml")
    assert process.end() == 0
    assert [line for line in process.lines if "missing.toml cannot be read" in line]
    assert page.read_commands(0).slot.alpha_millionths == 500_000


def test_a_second_controller_is_refused(start, page):
    assert page.claim_controller()
    process = start()
    assert process.end() == EXIT_NOT_ALONE
    assert "another controller" in process.lines[-1]


def test_a_page_that_is_none_is_an_error_in_one_line(tmp_path, caplog):
    assert controller.main(["--page", str(tmp_path / "missing"), "--once"]) == EXIT_NO_PAGE
    assert controller.main(["--page", str(tmp_path), "--once"]) == EXIT_NO_PAGE
    assert all(record.getMessage().startswith("no control page: ") for record in caplog.records)


STUCK = """
import sys, time
from shunter.batching.page.control_page import ControlPage
from shunter.plugins.control import controller
def store_a_part_and_stop(self, index, values):
    self.words[index] = 999_999
    print("writing", flush=True)
    time.sleep(600)
ControlPage._store = store_a_part_and_stop
controller.main(sys.argv[1:])
"""


def test_a_page_left_by_a_controller_killed_while_writing_is_repaired(
    start, page, agent, add_model
):
    add_model(0)
    process = start(command=("-c", STUCK))
    process.wait_for("writing", "stdout")
    process.process.send_signal(signal.SIGKILL)
    assert process.end() == -signal.SIGKILL
    assert page.command_sequence(0) % 2 == 1
    with pytest.raises(UnstableError):
        page.read_commands(0)
    assert page.claim_controller()
    assert agent.do_work(1) == 1
    assert page.command_sequence(0) % 2 == 0
    assert page.read_commands(0).slot.alpha_millionths == 500_000


def test_it_starts_without_the_heavy_packages(tmp_path):
    heavy = {"torch", "ts", "yaml", "httpx", "rich", "typer"}
    code = f"import sys, shunter.plugins.control.controller; print(*{heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == ""


def test_the_page_has_room_for_every_configuration():
    assert MAX_GROUPS <= GROUP_COUNT


def test_what_stays_as_it_is_is_looked_at_once_a_second(page, poke, add_model):
    add_model(1)
    quiet, at = controller.Quiet(page), []
    for tenth in range(300):
        if tenth == 200:
            poke(1, "arrivals", 1)
        now_ns = 5 * 10**9 + tenth * 10**8
        if quiet.is_due(now_ns):
            poke(1, "command_sequence", tenth)  # as a duty cycle may
            quiet.worked(now_ns)
            at.append(tenth)
    assert at[:101] == [*range(100), 109]
    assert [each for each in at if 101 <= each < 200] == [*range(109, 200, 10)]
    assert at[-100:] == [*range(200, 300)]


def test_what_stays_as_it_is_is_looked_at_twice_a_second(page, poke, add_model):
    add_model(1)
    quiet, looks, now_s = controller.Quiet(page), [], 0.0
    while now_s < 30:
        if quiet.is_due(int(now_s * 1e9)):
            quiet.worked(int(now_s * 1e9))
        if now_s >= 20:
            if not looks:
                poke(1, "arrivals", 1)
            looks.append(now_s)
        now_s = round(now_s + quiet.look_s(0.1, int(now_s * 1e9)), 6)
    assert 20 <= looks[0] < 20.5
    assert len(looks) == pytest.approx(100, abs=6)  # it is news: ten a second again
    before = controller.Quiet(page)
    assert [before.look_s(each, int(11e9)) for each in (0.1, 2.0)] == [0.5, 2.0]
    assert before.look_s(0.1, int(9e9)) == 0.1


def test_other_models_are_news(page, add_model, poke):
    quiet = controller.Quiet(page)
    assert quiet.is_due(0)
    quiet.worked(0)
    for second in range(1, 30):
        assert quiet.is_due(second * 10**9)
        quiet.worked(second * 10**9)
    assert not quiet.is_due(int(29.5e9))
    add_model(3)
    assert quiet.is_due(int(29.6e9))
    quiet.worked(int(29.6e9))
    poke(3, "slot_state", 0)
    assert quiet.is_due(int(29.7e9))
