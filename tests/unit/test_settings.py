"""Settings: the place of home, the precedence of sources, the refused values (H28)."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import make_url

import drainmark as dm
from drainmark.jobs.errors import HomeNotFound, UsageError
from drainmark.orchestration.cli.main import invoke
from drainmark.resources.registry.engines import engine_of as registry_engine
from drainmark.resources.settings import Settings, find_settings_file, is_local, load_settings
from drainmark.resources.sinks.databases import engine_of
from drainmark.resources.spark.session import SparkEngine


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project folder with an empty drainmark.toml; the working directory is two levels below it."""
    root = tmp_path.resolve() / "project"
    (root / "a" / "b").mkdir(parents=True)
    (root / "drainmark.toml").touch()
    for name in ("HOME", "REGISTRY_URL", "SPARK_MASTER", "LEASE_SECONDS", "APPLICATIONS", "SPARK_CONF"):
        monkeypatch.delenv(f"DRAINMARK_{name}", raising=False)
    monkeypatch.chdir(root / "a" / "b")
    return root


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory without a drainmark.toml in it or above it."""
    if find_settings_file(tmp_path):
        pytest.skip("the temporary folder lies inside a project")
    monkeypatch.delenv("DRAINMARK_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path.resolve()


@pytest.mark.parametrize(
    ("given", "master", "resident_for_dagster", "resident_for_the_command_line"),
    [
        ({}, "local[*]", True, False),
        ({"spark_master": "local[4]"}, "local[4]", True, False),
        ({"spark": "resident", "spark_master": "local[4]"}, "local[4]", True, True),
        ({"spark": "in-process"}, "local[*]", False, False),
        ({"spark": "local[2]"}, "local[2]", False, False),
        ({"spark": "sc://host:15002"}, "sc://host:15002", False, False),
        ({"spark_master": "sc://host:15002"}, "sc://host:15002", False, False),
        ({"spark_master": "spark://host:7077"}, "spark://host:7077", False, False),
    ],
)
def test_which_spark_is_meant(
    tmp_path: Path,
    given: dict[str, str],
    master: str,
    resident_for_dagster: bool,
    resident_for_the_command_line: bool,
) -> None:
    settings = Settings(home=tmp_path, project_root=tmp_path, **given)
    assert settings.master == master
    assert settings.wants_resident(by_default=True) is resident_for_dagster
    assert settings.wants_resident(by_default=False) is resident_for_the_command_line


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[4]", "local[*]", "local[2, 3]", "local-cluster[2,1,1024]"),
        *(
            "spark://host:7077",
            "spark://[::1]:7077",
            "spark://one:7077,two:7077",
            "yarn",
            "sc://host:15002",
            "sc://host:443/;use_ssl=true",
        ),
        *("k8s://https://api.example.com:6443", "k8s://host:6443", "k8s://https://kubernetes.default.svc"),
    ],
)
def test_an_address_of_spark_is_the_same_in_both_settings(tmp_path: Path, master: str) -> None:
    for name in ("spark", "spark_master"):
        settings = Settings(home=tmp_path, project_root=tmp_path, **{name: master})
        assert settings.master == master
        assert is_local(master) or not settings.wants_resident(by_default=True)


@pytest.mark.parametrize("name", ["spark", "spark_master"])
@pytest.mark.parametrize(
    "value",
    [
        *("", "yarn-client", "yarn cluster", "mesos://host:5050", "local[]", "local[four]", "locally", "host:7077"),
        *("local[0]", "local[00, 3]", "spark://host", "spark://one,two:7077", "spark://one:7077,two"),
        *("spark://", "k8s://", "k8s:/host", "http://api.example.com:6443", "sc://", "AUTO"),
    ],
)
def test_what_spark_would_not_take_is_refused_with_what_it_takes(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=r"local\[\*\].*spark://.*yarn.*HADOOP_CONF_DIR.*k8s://.*sc://") as caught:
        Settings(home=tmp_path, project_root=tmp_path, **{name: value})
    assert ("in-process" in str(caught.value)) is (name == "spark")


def test_every_cluster_of_the_page_is_a_setting(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
    named = re.findall(r'(spark|spark_master) = "([^"…]+)"', page)
    assert {value.partition(":")[0] for _, value in named} >= {"spark", "sc", "yarn", "k8s"}
    for name, value in named:
        assert Settings(home=tmp_path, project_root=tmp_path, **{name: value}).master == value


@pytest.mark.seed("H28")
def test_home_is_beside_the_nearest_settings_file_from_any_folder_below(project: Path) -> None:
    settings = load_settings()
    assert settings.home == project / ".drainmark"
    assert settings.project_root == project
    assert settings.registry_url == f"sqlite:///{project}/.drainmark/registry.db"


@pytest.mark.seed("H28")
def test_relative_home_of_the_environment_does_not_follow_the_working_directory(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMARK_HOME", "elsewhere")
    assert load_settings().home == project / "elsewhere"


def test_home_of_the_settings_file_starts_at_its_folder(project: Path) -> None:
    (project / "drainmark.toml").write_text('home = "durable"\n', encoding="utf-8")
    assert load_settings().home == project / "durable"


def test_home_flag_is_relative_to_the_working_directory_and_wins(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMARK_HOME", "elsewhere")
    assert load_settings(home="here").home == project / "a" / "b" / "here"


def test_an_empty_home_is_none_that_is_given(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAINMARK_HOME", "elsewhere")
    assert load_settings(home="").home == project / "elsewhere"
    for arguments in (["--home", "", "status"], ["status", "--home="]):
        assert invoke(arguments) == 0
        assert str(project / "elsewhere") in capsys.readouterr().out
    monkeypatch.setenv("DRAINMARK_HOME", "")
    assert load_settings().home == project / ".drainmark"


def test_no_home_is_refused_with_a_remedy(nowhere: Path) -> None:
    with pytest.raises(HomeNotFound) as caught:
        load_settings()
    assert caught.value.exit_code == 2
    assert caught.value.remedy


def test_home_by_environment_alone_needs_no_settings_file(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINMARK_HOME", str(nowhere / "home"))
    settings = load_settings()
    assert settings.home == nowhere / "home"
    assert settings.project_root == nowhere


def test_flags_win_over_environment_and_environment_over_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "drainmark.toml").write_text(
        'spark_master = "local[1]"\nlease_seconds = 1\nheartbeat_seconds = 0.2\n'
        "max_group_triggers = 7\nmax_group_bytes = 7\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("DRAINMARK_SPARK_MASTER", "local[2]")
    monkeypatch.setenv("DRAINMARK_LEASE_SECONDS", "2")
    settings = load_settings(spark_master="local[3]", max_group_bytes=None)
    assert (settings.spark_master, settings.lease_seconds, settings.max_group_triggers) == ("local[3]", 2.0, 7)
    assert settings.max_group_bytes == 7  # a flag that is not given is None and has no effect


def test_lists_and_tables_come_as_json_from_the_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINMARK_APPLICATIONS", '["one.py", "two.app"]')
    monkeypatch.setenv("DRAINMARK_SPARK_CONF", '{"spark.ui.enabled": "false"}')
    settings = load_settings()
    assert settings.applications == ("one.py", "two.app")
    assert settings.spark_conf == {"spark.ui.enabled": "false"}


def test_a_setting_may_be_in_a_file_that_a_variable_names(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "drainmark.toml").write_text('[kafka.plant]\n"sasl.password" = "${PLANT_PASSWORD}"\n', encoding="utf-8")
    secrets = {
        "DRAINMARK_REGISTRY_URL": "postgresql+psycopg://u:HUNTER2@h/d",
        "DRAINMARK_DATABASES__SALES": "postgresql://u:HUNTER2@h/sales",
        "PLANT_PASSWORD": "HUNTER2 ",
    }
    for name, value in secrets.items():
        (project / name).write_text(f"{value}\n", encoding="utf-8")
        monkeypatch.setenv(f"{name}_FILE", str(project / name))
    settings = load_settings()
    assert settings.registry_url == secrets["DRAINMARK_REGISTRY_URL"]
    assert settings.databases == {"sales": secrets["DRAINMARK_DATABASES__SALES"]}
    assert settings.kafka == {"plant": {"sasl.password": "HUNTER2 "}}


def test_a_file_of_a_variable_is_refused_if_it_is_not_there_or_the_variable_is_set(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMARK_REGISTRY_URL_FILE", str(project / "secret"))
    with pytest.raises(UsageError, match="DRAINMARK_REGISTRY_URL_FILE names") as caught:
        load_settings()
    assert caught.value.facts["path"] == str(project / "secret")
    (project / "secret").write_bytes(b"HUNTER2\xff")
    with pytest.raises(UsageError, match="UTF-8") as caught:
        load_settings()
    (project / "secret").write_text("HUNTER2")
    monkeypatch.setenv("DRAINMARK_REGISTRY_URL", "sqlite:///HUNTER2.db")
    with pytest.raises(UsageError, match="both set") as again:
        load_settings()
    assert "HUNTER2" not in "".join(traceback.format_exception(caught.value) + traceback.format_exception(again.value))


def test_a_variable_that_is_no_setting_or_names_no_file_is_not_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMARK_ENV_FILE", str(project / "of_others"))
    monkeypatch.setenv("DRAINMARK_DATABASES__SALES_FILE", "")
    assert load_settings().databases == {}
    monkeypatch.setenv("DRAINMARK_DATABASES__SALES", "sqlite:///sales.db")
    assert load_settings().databases == {"sales": "sqlite:///sales.db"}


def test_a_list_in_the_environment_that_is_no_json_is_a_usage_error(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMARK_APPLICATIONS", "one.py")
    with pytest.raises(UsageError, match="DRAINMARK_APPLICATIONS") as caught:
        load_settings()
    assert "EnvSettingsSource" not in str(caught.value)
    assert "one.py" not in str(caught.value)
    assert caught.value.remedy == """DRAINMARK_APPLICATIONS='["one", "two"]'"""
    monkeypatch.delenv("DRAINMARK_APPLICATIONS")
    monkeypatch.setenv("DRAINMARK_DATABASES", "sqlite:///secret.db")
    with pytest.raises(UsageError, match=r"DRAINMARK_DATABASES .* table") as caught:
        load_settings()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("max_group_trigers = 5", "max_group_trigers is no setting: did you mean 'max_group_triggers'?"),
        ("zzz = 5", "zzz is no setting →"),
        ('on_halt = "secret"', 'on_halt must be a list of texts: ["one", "two"] →'),
        ('databases = "secret"', "databases must be a table of names and values"),
        ("pages_url = 7", "pages_url must be a text"),
        ('openlineage_url = "http://secret@h.example"', "openlineage_url must be the http(s) address of a server"),
        ('otlp_url = "secret:4317"', "otlp_url must be the http(s) address of a server, without user"),
        ('lease_seconds = "secret"', "lease_seconds must be a number →"),
        ('max_group_triggers = "secret"', "max_group_triggers must be a whole number →"),
        ("max_group_triggers = 0", "max_group_triggers must be greater than or equal to 1 →"),
        ('spark = "secret one"', "or sc://host:15002, a Connect server →"),
    ],
)
def test_a_wrong_setting_is_told_in_plain_words_without_its_value(project: Path, content: str, said: str) -> None:
    (project / "drainmark.toml").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_wrong_variable_is_named_as_it_is_set(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINMARK_LEASE_SECONDS", "soon")
    with pytest.raises(UsageError, match="DRAINMARK_LEASE_SECONDS must be a number"):
        load_settings()


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("max_group_trigers = 5", "max_group_trigers"),  # a typing error must not be silent
        ("max_group_triggers = 0", "max_group_triggers"),
        ('lease_seconds = "soon"', "lease_seconds"),
        ("lease_seconds = 3", "heartbeat_seconds"),  # a lease that ends before its next heartbeat
        ("heartbeat_seconds = 20.5", "heartbeat_seconds"),
    ],
)
def test_wrong_settings_are_refused_by_name(project: Path, content: str, field: str) -> None:
    (project / "drainmark.toml").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert list(caught.value.facts["fields"]) == [field]


def test_pauses_double_up_to_the_limit_however_long_failures_go_on(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, project_root=tmp_path)
    assert [settings.pause_seconds(failures) for failures in (1, 2, 6, 7, 10**6)] == [1.0, 2.0, 32.0, 60.0, 60.0]


@pytest.mark.parametrize(
    "content", ['registry = "postgresql://u:HUNTER2@h/db"', '[kafka]\n"sasl.password" = "HUNTER2"']
)
def test_a_wrong_setting_is_quoted_in_no_traceback(project: Path, content: str) -> None:
    (project / "drainmark.toml").write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert "HUNTER2" not in "".join(traceback.format_exception(caught.value))


def test_broken_toml_is_a_usage_error_that_names_the_file(project: Path) -> None:
    (project / "drainmark.toml").write_text("home = ", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_settings()
    assert caught.value.facts["path"] == project / "drainmark.toml"


def test_relative_sqlite_url_starts_at_the_project(project: Path) -> None:
    assert load_settings(registry_url="sqlite:///r.db").registry_url == f"sqlite:///{project}/r.db"
    assert load_settings(registry_url="sqlite:////r.db").registry_url == "sqlite:////r.db"
    assert load_settings(registry_url="postgresql://u:p@h/d").registry_url == "postgresql://u:p@h/d"


@pytest.mark.parametrize("name", ["my%20data", "what?"])
def test_a_home_that_a_url_would_lead_elsewhere_is_refused(project: Path, name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{project / name} has")):
        load_settings(home=project / name)
    for plain in ("my data", "100% sure", "[a] #1"):
        assert load_settings(home=project / plain).home == project / plain


def test_a_password_in_the_registry_url_is_not_in_the_repr(project: Path) -> None:
    assert "secret" not in repr(load_settings(registry_url="postgresql://u:secret@h/d"))


def test_settings_are_frozen_and_meet_no_environment_when_constructed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAINMARK_SPARK_MASTER", "local[2]")
    settings = Settings(home=tmp_path, project_root=tmp_path)
    assert settings.spark_master == "local[*]"
    with pytest.raises(ValidationError):
        settings.spark_master = "other"  # type: ignore[misc]


def test_a_home_is_for_nobody_else_and_one_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    for name, mode in (("made/below", 0o700), ("shared", 0o2750)):
        home = tmp_path / name
        if name == "shared":
            home.mkdir()
            home.chmod(mode)
        Settings(home=home, project_root=tmp_path).make_home()
        assert home.stat().st_mode & 0o7777 == mode


def test_a_scan_makes_its_home_so(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "app.py").write_text(
        "import drainmark as dm\n\n\n"
        '@dm.consistent(trigger="operator-driven")\n'
        f'@dm.source(dm.DirectoryScan(path="{tmp_path}/inbox", format="text"))\n'
        "def rows(scanned):\n    return scanned\n\n\n"
        'dm.sink(rows, dm.DeltaAppend("rows"))\n'
    )
    assert invoke(["scan", str(tmp_path / "app.py"), "--home", str(tmp_path / "home")]) == 0
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


def test_a_session_for_a_notebook_makes_its_home_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkEngine, "session", property(lambda engine: engine.scratch))  # no JVM is started
    assert dm.spark_session(home=str(tmp_path / "home")) == tmp_path / "home" / "spark"
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "open_engine", [registry_engine, lambda url: engine_of(make_url(url))], ids=["registry", "sink"]
)
def test_without_the_driver_it_is_said_what_to_install(
    open_engine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError) as caught:
        open_engine("postgresql+psycopg://nowhere/db")
    assert (caught.value.message, caught.value.remedy) == ("psycopg is missing", "pip install 'drainmark[postgres]'")
