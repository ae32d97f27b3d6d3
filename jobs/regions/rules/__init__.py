"""The rules of the graph: one function each, named after the violation; the id of a rule is its name in capitals.

Every rule checks the whole draft and yields all violations, so that an author sees all of them at once. A new rule is
one function and its place in RULES. A graph that keeps the rules may still be refused before its first claim: because
of its types (`runtime/analysis/blueprint`), or because this version cannot run it (`supported_features`).

Some constructs that Streams refuses cannot be written here, so no rule is about them: Import and Export operators,
since tables join applications (see `import_of_own_table`); a checkpoint configuration of one operator; a missing or
second Job Control Plane, since the controller is part of every run; parallel regions, since composites write out their
copies, and then `second_start_in_operator_driven` checks the starts of the copies. Each kind of operator checks its own
configuration (`operators_own`): Beacon, for example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from drainmark.jobs.errors import Violation
from drainmark.jobs.regions.merging import Draft, broken
from drainmark.jobs.regions.rules.annotations import (
    both_annotations,
    composite_without_start,
    merged_parameters_differ,
    second_start_in_operator_driven,
    start_kind,
    unsupported_in_region,
    unsupported_operator,
)
from drainmark.jobs.regions.rules.connections import (
    autonomous_port_fed_by_region,
    changes,
    control_ports_only,
    cycle_not_on_control_port,
    loop_through_start,
    mixed_port,
    no_input,
    unknown_output,
    unknown_upstream,
)
from drainmark.jobs.regions.rules.folders import two_scanners_of_a_folder
from drainmark.jobs.regions.rules.names import bad_application_name, bad_column, bad_name, duplicate_name
from drainmark.jobs.regions.rules.parameters import (
    alignment_timeout_forbidden,
    alignment_unknown,
    channels_unknown,
    checkpoint_interval_invalid,
    checkpoints_unknown,
    classic_only,
    inflight_bound,
    linger_invalid,
    negative_limit,
    nonpositive_timeout,
    period_forbidden,
    period_missing,
    runs_unknown,
    schedule_forbidden,
    schedule_malformed,
    thread_without_run,
    trigger_unknown,
)
from drainmark.jobs.regions.rules.stages import (
    buffered_control_port,
    buffered_outside_region,
    channel_bounds,
    channel_keys,
    cycle_of_stages,
    follower_of_two_stages,
    start_behind_channel,
    unbuffered_way_around,
)
from drainmark.jobs.regions.rules.tables import (
    import_of_own_table,
    lookup_of_own_table,
    reserved_table,
    table_inside_table,
    two_tables_of_a_name,
    two_writers_of_a_table,
)

Rule = Callable[[Draft], Iterator[Violation]]


def operators_own(draft: Draft) -> Iterator[Violation]:
    """Yield the violations of each operator's own configuration; it may depend on whether it is in a region."""
    for operator in draft.application.operators:
        try:
            yield from operator.violations(draft.region_of(operator.name) is not None)
        except (TypeError, AttributeError) as error:  # a check compares the author's values with others
            message = f"{operator.name}: an argument has another type than its parameter: {error}"
            remedy = "durations are seconds or timedeltas; for all: python -c 'import drainmark; help(drainmark)'"
            yield broken("ARGUMENT_TYPE", operator, message, remedy)


RULES: tuple[Rule, ...] = (
    bad_application_name,
    bad_name,
    bad_column,
    duplicate_name,
    unknown_upstream,
    unknown_output,
    no_input,
    cycle_not_on_control_port,
    loop_through_start,
    both_annotations,
    composite_without_start,
    start_kind,
    unsupported_in_region,
    unsupported_operator,
    second_start_in_operator_driven,
    merged_parameters_differ,
    trigger_unknown,
    period_missing,
    period_forbidden,
    nonpositive_timeout,
    linger_invalid,
    negative_limit,
    runs_unknown,
    checkpoints_unknown,
    alignment_unknown,
    alignment_timeout_forbidden,
    channels_unknown,
    inflight_bound,
    checkpoint_interval_invalid,
    schedule_forbidden,
    schedule_malformed,
    thread_without_run,
    mixed_port,
    control_ports_only,
    autonomous_port_fed_by_region,
    changes,
    buffered_outside_region,
    buffered_control_port,
    unbuffered_way_around,
    cycle_of_stages,
    start_behind_channel,
    follower_of_two_stages,
    channel_bounds,
    channel_keys,
    two_scanners_of_a_folder,
    two_writers_of_a_table,
    two_tables_of_a_name,
    table_inside_table,
    reserved_table,
    lookup_of_own_table,
    import_of_own_table,
    classic_only,
)


def broken_rules(draft: Draft) -> tuple[Violation, ...]:
    """Return every violation, sorted by place of declaration as the author reads the file."""
    found = [violation for rule in (*RULES, operators_own) for violation in rule(draft)]
    declared = {operator.name: index for index, operator in enumerate(draft.application.operators)}
    return tuple(sorted(found, key=lambda violation: declared.get(violation.operator or "", -1)))
