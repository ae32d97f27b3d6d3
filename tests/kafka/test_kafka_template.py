"""The project of `init --template kafka` on a real broker, by the steps that the verb prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from broker import Broker

from drainmark.orchestration.cli.main import invoke
from drainmark.resources.spark.session import SparkEngine

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_it_processes_the_sample_that_it_sends(
    engine: SparkEngine,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert engine.session is not None  # the engine of the command line finds this session
    monkeypatch.chdir(tmp_path)
    assert invoke(["init", "--template", "kafka"]) == 0
    broker.topic("orders", 2)
    with Path("drainmark.toml").open("a") as file:
        file.write(f'[kafka.main]\n"bootstrap.servers" = "{broker.servers}"\n')
    for times in (1, 2):
        sent = subprocess.run([sys.executable, "send.py"], capture_output=True, text=True, check=False)
        assert (sent.returncode, sent.stdout) == (0, "4 records are in topic orders\n"), sent.stderr
        assert invoke(["run"]) == 0, capsys.readouterr().err
        capsys.readouterr()
        assert invoke(["show", "item_totals", "--json"]) == 0
        rows = {row["item"]: row["pieces"] for row in json.loads(capsys.readouterr().out)}
        assert rows == {"cup": times, "tea": 3 * times}


def test_a_topic_that_is_not_there_is_told(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["init", "--template", "kafka"]) == 0
    text = Path("send.py").read_text().replace('"orders", "main"', '"missing", "main"').replace("10000", "2000")
    Path("send.py").write_text(text)
    with Path("drainmark.toml").open("a") as file:
        file.write(f'[kafka.main]\n"bootstrap.servers" = "{broker.servers}"\n')
    sent = subprocess.run([sys.executable, "send.py"], capture_output=True, text=True, check=False)
    assert sent.returncode == 1
    assert "topic missing took 0 of 4 records" in sent.stderr
