"""What of a model's configuration is refused before it is packed."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

from shunter.model_store import digits, minilm, resnet50
from shunter.plugins.cli import main as cli
from shunter.plugins.host import HostError
from shunter.plugins.torchserve import build
from shunter.plugins.triton import archive_keys, archive_section
from shunter.plugins.triton.archive_section import check

REFUSED = {
    "5": 'shunter: "5" is not a mapping',
    "": 'shunter: "None" is not a mapping',
    "{clas: strict}": "shunter.clas is not known; .*did you mean class",
    "{class: strickt}": "shunter.class: .*did you mean strict",
    "{slo_ms: -3}": 'shunter.slo_ms: "-3" is not a latency; allowed: milliseconds above 0',
    "{slo_ms: true}": "is not a latency",
    "{max_batch: 0}": "is not a batch size; allowed: 1 to 100000",
    "{configuration: 4by4}": "shunter.configuration: .*is not INSTANCESxTHREADSxBATCH",
    "{configuration: 1x1x1, groups: []}": "give one of them",
    "{network: 1x1x8}": "needs shunter.tensors",
    "{environment: [A]}": "shunter.environment: .* is not a mapping",
    "{retry: maybe}": 'shunter.retry: "maybe"; allowed: true, false',
    "{preemptible: often}": "true, false or a mapping",
    "{preemptible: {segment: 1}}": "did you mean segment_ms",
    "{preemptible: {segment_ms: 0}}": "milliseconds above 0 and at most 1000",
    "{preemptible: {boundaries: module}}": "did you mean modules",
    "{preemptible: {drop: 1}}": "shunter.preemptible.drop",
    "{pool: shard}": "did you mean shared",
    "{wait: company, weights: own}": "shunter.weights",
}


@pytest.mark.parametrize(("said", "told"), REFUSED.items())
def test_a_section_that_no_server_takes_is_refused(said, told):
    with pytest.raises(HostError, match=told):
        check(yaml.safe_load(f"shunter: {said}"))


def test_the_limits_are_those_of_the_server():
    java = Path(build.__file__).parent / "java/org/shunter/torchserve/settings/ModelSettings.java"
    limits = set(re.findall(r"> (\d[\d_]+)", java.read_text("utf-8")))
    assert limits >= {"86_400_000", "100_000"}
    assert (archive_keys.DAY_MS, archive_section._LARGEST_BATCH) == (86_400_000, 100_000)


def test_tensors_are_looked_at_where_there_is_torch():
    pytest.importorskip("torch")
    with pytest.raises(HostError, match=r"shunter.tensors: inputs: a list with at least one"):
        check({"shunter": {"tensors": {"inputs": [], "outputs": []}}})


@pytest.mark.parametrize("model", [digits, minilm, resnet50])
def test_what_the_samples_say_is_good(model):
    path = Path(model.__file__).with_name("model-config.yaml")
    check(yaml.safe_load(path.read_bytes()))


@pytest.mark.parametrize(
    "said",
    [
        *("{preemptible: {segment_ms: 0.5, boundaries: fx, drop: true}, class: best-effort}",),
        *("{slo_ms: 2.5, max_batch: 8, configuration: '1x2x4, 2x1x8', retry: false}", "{}"),
        "{groups: [{configuration: 1x1x1, classes: [strict]}], environment: {A: 1}}",
    ],
)
def test_what_servers_take_is_packed(said):
    check(yaml.safe_load(f"shunter: {said}"))
    check({"batchSize": 4})


def test_pack_says_in_which_file(tmp_path, capsys):
    if importlib.util.find_spec("model_archiver") is None:
        pytest.skip("needs the archiver")
    (tmp_path / "handler.py").write_text("def handle(data, context):\n    return data\n")
    (tmp_path / "model-config.yaml").write_text("shunter: {clas: strict}\n")
    command = ["pack", str(tmp_path), "--store", str(tmp_path / "store"), "--name", "m"]
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("shunter: model-config.yaml: ")
    assert "shunter.clas is not known" in said and not (tmp_path / "store").exists()
    (tmp_path / "model-config.yaml").write_text("shunter: {class: strict}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(command)
    assert not ended.value.code and (tmp_path / "store/m.mar").is_file()
