"""A remedy is a promise: each command that the product prints is carried out as printed in a test (K.6)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from followed import parse, words_of
from tree import files_of_tests, product_files, relative

LOOKS = ("apps", "graph", "operators", "plan", "status", "history", "show", "changes", "tables", "report", "trace",
         "metrics", "quarantine list", "quarantine show", "doctor")  # fmt: skip
"""Verbs that change nothing, except `doctor --repair`: the tests below parse their commands, and that is all."""
MENTIONS = {
    ("jobs/operators/unsupported_operators.py", "halt"): "a declaration is refused: there is no region yet",
    ("orchestration/cli/inspection.py", "init"): "there is no project yet",
    ("orchestration/dagster_assets/checks.py", "resume"): "describes a check; its result names the region",
}
"""Verbs that are named without their words, each with the reason."""
PLACEHOLDERS = {
    ("orchestration/cli/inspection.py", "run", "APP"): "no application is known here yet",
    ("orchestration/cli/metrics_trace.py", "run", "APP"): "no application is known here yet",
    ("orchestration/workplace/declaration.py", "scan", "APP"): "nobody knows where the application is now",
    ("resources/settings.py", "init", "PATH"): "the path of the project is the user's choice",
}
"""Words in capitals that the user has to replace, each with the reason why no name is known."""
CASES: dict[str, dict[str, str]] = {
    "jobs/runtime/commit/claim_checks.py": {
        "doctor --repair": "test_a_lost_registry_is_rebuilt",
        "tables drop --yes": "test_who_dies_while_a_table_is_dropped_leaves_it_to_the_next_owner",
        "reset --to": "test_a_state_that_lacks_what_was_made_without_its_operator_is_refused",
        "reset --to-initial": "test_rows_do_not_change_their_history",
        "run": "test_states_that_cannot_go_on_begin_anew_by_what_the_run_says",
    },
    "jobs/runtime/maintenance/erasure.py": {
        "run": "test_an_erasure_lets_what_is_in_flight_arrive_first",
    },
    "jobs/runtime/commit/replacement.py": {
        "reset --to": "test_a_file_that_cannot_be_replaced_is_read_again_behind_a_rewind",
    },
    "jobs/runtime/commit/removal/retractable.py": {
        "reset --to --yes": "test_changes_that_were_dropped_are_not_guessed",
    },
    "jobs/runtime/commit/table_damage.py": {
        "reset --to": "test_a_group_whose_files_are_lost_before_it_is_published_comes_again_behind_a_rewind",
    },
    "jobs/runtime/commit/publish/outer_sinks.py": {
        "doctor --repair": "test_a_sink_ahead_of_a_restored_home_halts_until_it_is_repaired",
        "doctor --repair --yes": "test_an_owner_that_goes_on_meanwhile_is_ended_and_the_repair_repeated",
    },
    "jobs/runtime/hosting/handler_host.py": {
        "reset --by": "test_a_region_goes_back_a_state_if_the_store_lost_the_last_one",
    },
    "jobs/runtime/input/rewound_sources.py": {
        "reset --to --cascade": "test_who_read_withdrawn_rows_reads_them_again_or_keeps_them",
        "resume": "test_who_read_withdrawn_rows_reads_them_again_or_keeps_them",
    },
    "jobs/runtime/messages.py": {
        "doctor --repair --yes": "test_what_a_halted_run_and_the_plan_of_a_rewind_tell_puts_the_tables_right",
        "skip --file --reason": "test_a_file_that_halts_the_region_is_skipped",
        "resume": "test_a_halted_region_is_resumed",
        "reset --to --yes": "test_a_halt_for_a_file_that_is_committed_says_how_it_is_skipped_all_the_same",
    },
    "orchestration/workplace/workplace.py": {
        "doctor --repair": "test_a_registry_that_the_scan_misses_is_rebuilt",
    },
    "orchestration/workplace/moved_inputs.py": {
        "reset --to-initial --accept-loss": "test_what_came_along_is_refused_and_is_read_from_its_new_place",
    },
    "resources/delta/delta_tables.py": {
        "reset --to-initial": "test_a_table_of_other_partitions_is_given_up_for_one_with_all_input",
        "tables drop --region": "test_a_start_that_was_renamed_leaves_a_region_that_can_be_dropped",
    },
    "resources/registry/registry.py": {
        "doctor --repair": "test_a_damaged_registry_is_rebuilt",
    },
    "resources/sinks/applied_version.py": {
        "reset --to-initial": "test_a_database_that_lost_the_row_of_a_table_is_filled_anew",
    },
    "resources/sinks/version_note.py": {
        "doctor --repair": "test_a_failover_in_the_middle_of_a_run_is_found_before_the_next_group_hides_it",
        "doctor --repair --yes": "test_a_repair_changes_nothing_if_another_owner_wrote_since_it_was_planned",
    },
    "orchestration/cli/inspection.py": {
        "tables drop --region": "test_regions_without_code_are_listed_also_if_no_run_came_since",
        "run": "test_a_region_that_never_ran_is_run",
    },
    "orchestration/cli/plan.py": {
        "reset --to-initial": "test_states_that_cannot_go_on_begin_anew_by_what_the_plan_says",
        "tables drop --region": "test_a_region_that_left_is_told_until_it_is_dropped",
    },
    "orchestration/verbs/rewinds/retract.py": {
        "skip --file --reason": "test_what_is_said_of_a_retracted_file",
    },
    "orchestration/dagster_assets/checks.py": {
        "publish": "test_who_reads_meanwhile_finds_what_is_committed",
    },
    "orchestration/discovery/region_scan.py": {
        "reset --to --accept-loss": "test_the_new_content_of_a_changed_file_is_taken_by_the_command_of_the_halt",
        "tables drop --region": "test_plan_says_what_run_says_and_the_remedy_works",
    },
    "orchestration/dagster_jobs/sensors.py": {
        "doctor --repair": "test_a_registry_that_the_scan_misses_is_rebuilt",
    },
    "orchestration/doctor/examination.py": {
        "doctor --repair": "test_a_lost_registry_is_rebuilt",
    },
    "orchestration/doctor/machine.py": {
        "gc": "test_garbage_is_collected",
        "sparks --stop": "test_it_is_stopped_as_the_doctor_says",
    },
    "orchestration/doctor/regions.py": {
        "doctor --repair": "test_a_lost_registry_is_rebuilt",
        "resume": "test_doctor_shows_the_plan_acts_with_yes_and_is_clean_afterwards",
        "gc": "test_garbage_is_collected",
    },
    "orchestration/verbs/inputs/accept_loss.py": {
        "resume": "test_a_halt_without_a_loss_is_ended_without_accepting_one",
    },
    "orchestration/verbs/interventions.py": {
        "reset --to": "test_a_committed_file_is_skipped_behind_a_rewind",
        "scan": "test_a_file_that_is_not_known_yet_is_found_by_a_scan",
    },
    "orchestration/verbs/orders.py": {
        "reset --to --cascade": "test_a_chain_goes_back_by_one_command",
        "doctor --repair": "test_what_a_halted_run_and_the_plan_of_a_rewind_tell_puts_the_tables_right",
        "resume": "test_a_halt_that_was_asked_for_is_ended_by_what_the_verbs_say",
    },
    "orchestration/verbs/inputs/backfill.py": {
        "backfill --input --again": "test_a_changed_file_is_not_queued_beside_its_earlier_state",
    },
    "orchestration/verbs/inputs/quarantine.py": {
        "reset --to": "test_the_verbs_print_what_they_found",
    },
    "orchestration/verbs/removals/table_drops.py": {
        "tables drop": "test_what_is_still_needed_is_not_dropped",
        "tables drop --region --yes": "test_a_drop_of_a_region_that_died_goes_on",
    },
    "orchestration/verbs/table_repair.py": {
        "reset --to": "test_ids_that_are_lost_are_told_and_a_rewind_below_them_brings_them_back",
    },
    "orchestration/tracing/trace.py": {
        "scan": "test_a_file_that_is_to_be_traced_is_found_by_a_scan",
        "run": "test_a_region_that_never_ran_is_run",
    },
    "orchestration/inspection/reads.py": {
        "reset --to --cascade --yes": "test_what_status_says_of_a_reader_that_is_wrong_leads_to_right_tables",
    },
    "orchestration/inspection/status.py": {
        "doctor --repair": "test_a_lost_registry_is_rebuilt",
        "tables drop --region --yes": "test_a_region_that_left_the_code_is_told_and_dropped",
    },
}
"""Module -> command -> the test that provokes the error, and hands its text to `followed.follow`."""
UNFOLLOWED: dict[str, dict[str, str]] = {
    "jobs/operators/sources/kafka_losses.py": {
        "resume --accept-loss --reason": "needs a broker: kafka/test_kafka_regions.py types the command",
    },
    "orchestration/dagster_jobs/sensors.py": {
        "run --attempts": "the run shows the cause; it repairs nothing",
    },
    "orchestration/doctor/machine.py": {
        "dev": "a server that stays: integration/test_dev.py starts it",
    },
    "orchestration/inspection/status.py": {
        "run": "what each run after a crash does: tests/recovery",
    },
}
"""Module -> command that no test follows as printed -> the reason."""
_EXAMPLES = ("jobs/apps", *(f"orchestration/cli/{name}" for name in ("demo", "templates.py", "terminal/options")))


def told(path: Path) -> Iterator[str]:
    """Yield the texts of a module, without its docstrings; a value in an f-string becomes `1`."""
    tree = ast.parse(path.read_text())
    passed: set[ast.AST] = set()
    for node in ast.walk(tree):
        for each in node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ():
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                passed.add(each.value)
        if isinstance(node, ast.JoinedStr):
            passed.update(node.values)
            yield "".join(part.value if isinstance(part, ast.Constant) else "1" for part in node.values)  # type: ignore[misc]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in passed:
            yield node.value


@cache
def commands() -> dict[tuple[str, str], list[tuple[str, list[str]]]]:
    """Return (module, command) -> its forms; a command is a verb with its flags, without values."""
    found: dict[tuple[str, str], list[tuple[str, list[str]]]] = {}
    for path in product_files():
        name = relative(path)
        if name.startswith(_EXAMPLES):
            continue
        for text in told(path):
            for verb, words, _ in words_of(text):
                flags = [word for word in words if word.startswith("--")]
                found.setdefault((name, " ".join([verb, *flags])), []).append((verb, words))
    return found


def wanted() -> dict[tuple[str, str], list[tuple[str, list[str]]]]:
    """Return the commands that change something and are told with their words."""
    looks = {command for command in commands() if command[1].split(" --")[0] in LOOKS and "--repair" not in command[1]}
    named = {(module, verb) for module, verb, _ in PLACEHOLDERS}
    every = {key: [each for each in forms if not _is_placeholder(key, each[1])] for key, forms in commands().items()}
    return {
        key: forms for key, forms in every.items() if key not in looks | MENTIONS.keys() and (forms or key not in named)
    }


def _is_placeholder(key: tuple[str, str], words: list[str]) -> bool:
    return any((key[0], key[1].split(" --")[0], word) in PLACEHOLDERS for word in words)


def test_every_command_that_changes_something_has_a_case() -> None:
    cases, unfollowed = _keys(CASES), _keys(UNFOLLOWED)
    known = cases | unfollowed
    missing = [f"{module}: drainmark {command}" for module, command in sorted(wanted().keys() - known)]
    assert not missing, (
        "write a test that provokes the error, hands its text to followed.follow, and asserts that the tables are "
        f"right afterwards; then name it in CASES: {missing}"
    )
    assert not known - wanted().keys(), "these commands are told no more"
    assert not cases & unfollowed


def _keys(table: dict[str, dict[str, str]]) -> set[tuple[str, str]]:
    return {(module, command) for module, commands in table.items() for command in commands}


@pytest.mark.parametrize("name", sorted({name for names in CASES.values() for name in names.values()}))
def test_a_case_follows_the_text_as_it_is_printed(name: str) -> None:
    texts = [text for path in files_of_tests() if f"def {name}(" in (text := path.read_text())]
    (case,) = (
        each
        for text in texts
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.FunctionDef) and each.name == name
    )
    calls = (each.func for each in ast.walk(case) if isinstance(each, ast.Call))
    assert "follow" in {called.id for called in calls if isinstance(called, ast.Name)}


def test_every_command_is_understood_and_names_what_it_means() -> None:
    for (module, command), forms in commands().items():
        for verb, words in forms:
            if (module, command) in MENTIONS and not words:
                continue
            parse(verb, words)
            capitals = [word for word in words if word.isupper() and word != "1"]
            assert all((module, verb, word) in PLACEHOLDERS for word in capitals), f"{module}: {verb} {words}"
